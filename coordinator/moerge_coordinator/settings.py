"""The coordinator's settings: one TOML file in its home folder and the environment, read once."""

import os
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal, get_args

import httpx
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from moerge.blobs.s3 import S3
from moerge.errors import MoergeError
from moerge.settings import UserPath, built, put, read_toml, unknown
from moerge_proto.digests import Name

FILE = "coordinator.toml"
PREFIX = "MOERGE_COORDINATOR_"
Event = Literal[
    "expert.joined", "contribution.arrived", "version.solved", "version.failed", "alias.moved", "owner.waits"
]
"""An event that a webhook can tell."""


def _network(value: str) -> str:
    ip_network(value)
    return value


def _address(value: str) -> httpx.URL:
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL as error:
        raise ValueError(f"not a valid address: {error}") from error
    if url.scheme not in ("https", "http") or not url.host or url.userinfo or url.fragment:
        raise ValueError("expected an https:// address without user and fragment")
    return url


def _site(value: str) -> str:
    """The address with one / at its end."""
    if _address(value).query:
        raise ValueError("expected an https:// address without query")
    return f"{value.rstrip('/')}/"


def _is_database(url: str) -> bool:
    """Tell whether both libraries read the address, and alike. Their errors can have parts of the password."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        made, read = make_url(url), conninfo_to_dict(url)
    except (ProgrammingError, ArgumentError, ValueError):
        return False
    return (made.password or "") == read.get("password", "") and "@" not in (made.host or "")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Webhook(BaseModel):
    """Receiver of events.

    Attributes:
        url: https:// address.
        secret_file: file with a `whsec_` secret a line; each of them signs.
        events: kinds of events to send; all by default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str = Field(repr=False)  # its path can be a secret
    secret_file: UserPath
    events: list[Event] = Field(default_factory=lambda: list(get_args(Event)), min_length=1)

    @field_validator("url")
    @classmethod
    def _plain(cls, value: str) -> str:
        _address(value)
        return value

    @property
    def place(self) -> str:
        """The address without its path."""
        url = httpx.URL(self.url)
        return f"{url.scheme}://{url.netloc.decode()}"


class SignIn(BaseModel):
    """People whom a trusted proxy signs in to the dashboard.

    Attributes:
        header: name of the proxy's header that tells the person.
        operators: their names in histories -> content of the header.
        readers: likewise, for people who only read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    header: str = Field(pattern=r"^[A-Za-z0-9-]+$")
    operators: dict[Name, str] = Field(default_factory=dict)
    readers: dict[Name, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _each_once(self) -> "SignIn":
        people = [value.strip().casefold() for value in (*self.operators.values(), *self.readers.values())]
        if len(set(people)) < len(people) or "" in people:
            raise ValueError("expected each person once, in operators or readers, and none empty")
        return self


class Settings(BaseModel):
    """The coordinator's settings. Unknown keys are refused.

    Attributes:
        home: folder of the database, the blobs and the versions.
        host: address to listen on.
        port: TCP port; 0 chooses a free one.
        tls_certificate: PEM file; with `tls_key`, enables HTTPS.
        tls_key: PEM file of the certificate's key.
        plain_http: allows plain HTTP on addresses of other machines, for a proxy on another machine.
        trusted_proxies: addresses or networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed;
            127.0.0.1 by default.
        sign_in: the table [sign_in].
        database: postgresql://USER:PASSWORD@HOST/NAME; by default a SQLite file in the home.
        webhook: the table [webhook].
        s3: the table [s3]; by default blobs are folders in the home.
        cache_bytes: maximum size of the store's cache in the home.
        owner_bytes: maximum size of an owner's files, each content once, and open uploads.
        owner_uploads: maximum number of an owner's open uploads.
        owner_bytes_per_second: maximum rate of an owner's chunks, at each process; unlimited by default.
        abandoned_after_hours: age at which unfinished uploads, unused files and ended workflows are removed.
        audit_days: age at which rows of the audit log, with people's names and addresses, are removed; default never.
        publication_max_rise: nats per token by which a new version's loss on the library's public texts may be above
            the seed's and the last version's; inf: it isn't measured.
        promotion_max_fall: points of normalised perplexity that a domain may lose when `champion` moves.
        promotion_max_errors: standard errors by which a result on a task may be worse when `champion` moves.
        promotion_signed: whether `champion` must be signed, by a key that isn't revoked.
        readers: who may use an expert whose owner has granted it to nobody: `all` readers, or only `named` ones, which
            then are none; see `moerge expert grant`.
        documentation: address of a site of moerge's pages (`make docs`), to which the dashboard links; none by default.
        log_level: `debug` also logs calls that only read, such as workers' polls.
        grace_seconds: time for calls to end after SIGTERM; workflows continue at the next start.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    home: UserPath
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    tls_certificate: UserPath | None = None
    tls_key: UserPath | None = None
    plain_http: bool = False
    trusted_proxies: list[Annotated[str, AfterValidator(_network)]] = Field(default_factory=lambda: ["127.0.0.1"])
    sign_in: SignIn | None = None
    database: Path | str = Field(default_factory=lambda known: known["home"] / "coordinator.sqlite", repr=False)
    webhook: Webhook | None = None
    s3: S3 | None = None
    cache_bytes: int = Field(default=200 * 2**30, ge=0)
    owner_bytes: int = Field(default=10**12, gt=0)
    owner_uploads: int = Field(default=64, gt=0)
    owner_bytes_per_second: int | None = Field(default=None, gt=0)
    abandoned_after_hours: float = Field(default=72, gt=0, le=10**6)
    audit_days: int | None = Field(default=None, ge=30)
    publication_max_rise: float = Field(default=0.3, ge=0, allow_inf_nan=True)
    promotion_max_fall: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    promotion_max_errors: float = Field(default=3.0, ge=0, allow_inf_nan=False)
    promotion_signed: bool = False
    readers: Literal["all", "named"] = "all"
    documentation: Annotated[str, AfterValidator(_site)] | None = None
    log_level: Literal["debug", "info"] = "info"
    grace_seconds: int = Field(default=20, ge=0, le=3600)

    @field_validator("database", mode="before")
    @classmethod
    def _address(cls, value: object) -> object:
        if not (isinstance(value, str) and value.startswith("postgresql://")):
            raise ValueError("expected an address that begins with postgresql://")
        if not _is_database(value):
            raise ValueError(
                "expected postgresql://USER:PASSWORD@HOST/NAME; special characters of the password are written like "
                "%40 for @, %2F for /, %25 for %"
            )
        return value

    @property
    def workflow_database(self) -> str:
        """Address of DBOS's database."""
        return self.database if isinstance(self.database, str) else f"sqlite:///{self.home / 'workflows.sqlite'}"

    @property
    def backed_up(self) -> Path:
        """A file whose time is that of the last backup."""
        return self.home / "backed-up"

    @model_validator(mode="after")
    def _both_or_none(self) -> "Settings":
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key: give both, or none for plain HTTP")
        return self

    @model_validator(mode="after")
    def _names_the_proxy(self) -> "Settings":
        if self.sign_in is not None and "trusted_proxies" not in self.model_fields_set:
            raise ValueError("sign_in: set trusted_proxies too; every program at these addresses can claim any person")
        return self

    @model_validator(mode="after")
    def _encrypts_events(self) -> "Settings":
        if self.webhook is not None and not self.plain_http:
            url = httpx.URL(self.webhook.url)
            if url.scheme != "https" and not is_loopback(url.host):
                raise ValueError("webhook.url: plain HTTP to another machine; use https://, or set plain_http")
        return self


def read_settings(home: Path, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings in `home`, overridden by variables such as MOERGE_COORDINATOR_PORT; `__` precedes a table's key."""
    settings, problems = load(home, environment)
    if settings is None:
        raise problems[0]
    return settings


def load(home: Path, environment: Mapping[str, str]) -> tuple[Settings | None, list[MoergeError]]:
    """The settings, or all their errors."""
    path = home / FILE
    if not path.is_file():
        return None, [
            MoergeError("not found", where=str(path), todo=f"run: moerge coordinator init {quote(str(home))}")
        ]
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
    settings, result = built(Settings, {**values, "home": home}, places, str(path), ["home"])
    return (None, fixed + result) if fixed or result else (settings, [])
