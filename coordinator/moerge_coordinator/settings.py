"""The coordinator's settings: one TOML file in its home folder and the environment, read once."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from moerge.blobs.s3 import S3
from moerge.errors import MoergeError
from moerge.settings import built, put, read_toml, unknown
from moerge_proto.experts import Vocabulary

FILE = "coordinator.toml"
PREFIX = "MOERGE_COORDINATOR_"
_ADDRESS = re.compile(r"(https?://[a-z0-9][a-z0-9.-]*(?::[0-9]{1,5})?)((?:/[A-Za-z0-9._~+=,-]*)*)")


def require_address(url: str) -> str:
    """`url`, if it is written in the one plain way: lower-case host, no user, no query, no escapes, no dot segments.

    Raises:
        ValueError: says what is wrong with it.
    """
    match = _ADDRESS.fullmatch(url)
    if match is None:
        raise ValueError(f"{url!r} is not a plain https:// address: no user, query, fragment, escapes or other schemes")
    segments = match[2].split("/")[1:]
    if any(segment in (".", "..") for segment in segments) or "" in segments[:-1]:
        raise ValueError(f"{url!r} has segments that lead elsewhere")
    return url


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
        owner_bytes: what an owner may hold: complete files, each content once, and the announced sizes of open uploads.
        owner_uploads: how many uploads an owner may have open at once.
        owner_bytes_per_second: how fast an owner may send chunks, at each process that serves; None: as fast as it can.
        abandoned_after_hours: after this long, an open upload that no request touched is removed, and a complete file
            that nothing refers to.
        sources: addresses below which experts may be fetched, such as https://models.example.org/public; else none.
        route_bytes: memory that the process which routes a text may take, Python and torch (0.5 GB) included; None: no
            text is routed.
        vocabulary: `same` refuses experts with other vocabularies; `pad` takes those that only add tokens at the end.
        expert_max_distance: how far a tensor of a new expert may be from other experts', as a multiple of its norm.
        promotion_max_fall: points of normalised perplexity by which a domain that is evaluated on both may fall when
            `champion` moves to another version, unless the operator overrides that.
        log_level: `debug` also logs calls that only look, several a second for each worker.
        grace_seconds: how long calls that run may take to end after SIGTERM.
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
    owner_bytes: int = Field(default=10**12, gt=0)
    owner_uploads: int = Field(default=64, gt=0)
    owner_bytes_per_second: int | None = Field(default=None, gt=0)
    abandoned_after_hours: float = Field(default=72, gt=0, le=10**6)
    sources: list[Annotated[str, AfterValidator(require_address)]] = Field(default_factory=list)
    route_bytes: int | None = Field(default=None, gt=0)
    vocabulary: Vocabulary = "same"
    expert_max_distance: float = Field(default=1.2, gt=0, allow_inf_nan=False)
    promotion_max_fall: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    log_level: Literal["debug", "info"] = "info"
    grace_seconds: int = Field(default=20, ge=0, le=3600)

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

    @model_validator(mode="after")
    def _both_or_none(self) -> "Settings":
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key: give both, or none for plain HTTP")
        return self


def read_settings(home: Path, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings in `home`; MOERGE_COORDINATOR_PORT and its like go before the file's, `__` names a key of a table.

    Raises:
        MoergeError: there are none, or a key or value is wrong.
    """
    settings, problems = load(home, environment)
    if settings is None:
        raise problems[0]
    return settings


def load(home: Path, environment: Mapping[str, str]) -> tuple[Settings | None, list[MoergeError]]:
    """The settings, or all that is wrong with them."""
    path = home / FILE
    if not path.is_file():
        return None, [MoergeError("not found", where=str(path), todo=f"run: moerge coordinator init {home}")]
    try:
        values = read_toml(path)
    except MoergeError as error:
        return None, [error]
    places: dict[tuple[str, ...], str] = {(key,): str(path) for key in values}
    for name, value in environment.items():
        if name.startswith(PREFIX):
            keys = tuple(name.removeprefix(PREFIX).lower().split("__"))
            put(values, keys, value)
            places[keys] = places[keys[:1]] = f"environment variable {name}"
    fixed = [unknown(Settings, ("home",), places["home",], ["home"])] if "home" in values else []
    settings, found = built(Settings, {**values, "home": home}, places, str(path), ["home"])
    return (None, fixed + found) if fixed or found else (settings, [])
