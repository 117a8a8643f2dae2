"""The coordinator's settings: one TOML file in its home folder, read once."""

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from moerge.architectures.config import Vocabulary
from moerge.errors import MoergeError
from moerge_coordinator.sources import require_address

FILE = "coordinator.toml"


class Settings(BaseModel):
    """Everything that the coordinator can be told. Unknown keys are refused.

    Attributes:
        home: folder of the database, the blobs and the versions.
        host: address to listen on.
        port: TCP port; 0 takes a free one.
        tls_certificate: PEM file; with `tls_key` it makes the coordinator speak HTTPS.
        tls_key: PEM file.
        owner_bytes: what an owner may hold: complete files, each content once, and the announced sizes of open uploads.
        owner_uploads: how many uploads an owner may have open at once.
        owner_bytes_per_second: how fast an owner may send chunks, at each process that serves; None: as fast as it can.
        abandoned_after_hours: after this long, an open upload that no request touched is removed, and a complete file
            that nothing refers to.
        sources: addresses below which experts may be fetched, such as https://models.example.org/public; else none.
        vocabulary: `same` refuses experts with other vocabularies; `pad` takes those that only add tokens at the end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    owner_bytes: int = Field(default=10**12, gt=0)
    owner_uploads: int = Field(default=64, gt=0)
    owner_bytes_per_second: int | None = Field(default=None, gt=0)
    abandoned_after_hours: float = Field(default=72, gt=0, le=10**6)
    sources: list[Annotated[str, AfterValidator(require_address)]] = Field(default_factory=list)
    vocabulary: Vocabulary = "same"

    @property
    def database(self) -> Path:
        return self.home / "coordinator.sqlite"

    @property
    def workflow_database(self) -> Path:
        return self.home / "workflows.sqlite"


def read_settings(home: Path) -> Settings:
    """The settings in `home`.

    Raises:
        MoergeError: there are none, or a key or value is wrong.
    """
    path = home / FILE
    if not path.is_file():
        raise MoergeError("not found", where=str(path), todo=f"run: moerge coordinator init {home}")
    try:
        return Settings(home=home, **tomllib.loads(path.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise MoergeError(f"not TOML: {error}", where=str(path)) from error
    except (ValidationError, TypeError) as error:
        raise MoergeError(f"a key or value is wrong: {error}", where=str(path)) from error
