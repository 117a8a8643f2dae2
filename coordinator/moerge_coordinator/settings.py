"""The coordinator's settings: one TOML file in its home folder, read once."""

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from moerge.architectures.config import Vocabulary
from moerge.blobs.s3 import S3
from moerge.errors import MoergeError

FILE = "coordinator.toml"


class Settings(BaseModel):
    """Everything that the coordinator can be told. Unknown keys are refused.

    Attributes:
        home: folder of the database, the blobs and the versions.
        host: address to listen on.
        port: TCP port; 0 takes a free one.
        tls_certificate: PEM file; with `tls_key` it makes the coordinator speak HTTPS.
        tls_key: PEM file.
        database: address of a PostgreSQL database, `postgresql://USER:PASSWORD@HOST/NAME`, instead of a SQLite file in
            `home`.
        s3: the S3-compatible store of blobs and chunks, instead of folders in `home`. Several coordinators may serve
            at once on one PostgreSQL database and one such store, each with a home of its own.
        cache_bytes: bound of the cache that `home` keeps of that store.
        vocabulary: `same` refuses experts with other vocabularies; `pad` takes those that only add tokens at the end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    home: Path
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    database: Path | str = Field(default_factory=lambda known: known["home"] / "coordinator.sqlite", repr=False)
    s3: S3 | None = None
    cache_bytes: int = Field(default=200 * 2**30, ge=0)
    vocabulary: Vocabulary = "same"

    @field_validator("database", mode="before")
    @classmethod
    def _address(cls, value: object) -> object:
        if not (isinstance(value, str) and value.startswith("postgresql://")):
            raise ValueError("expected an address that begins with postgresql://")
        return value

    @property
    def workflow_database(self) -> str:
        """Address of DBOS's database."""
        return self.database if isinstance(self.database, str) else f"sqlite:///{self.home / 'workflows.sqlite'}"


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
