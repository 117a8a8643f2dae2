"""A worker's settings: the owner's TOML file, overridden by the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from moerge.bearer import bearer_token, is_bearer_token
from moerge.errors import MoergeError
from moerge.files import user_path
from moerge.models.sources import checkpoint_folder
from moerge.settings import Keys, UserPath, built, put, read_toml
from moerge_proto.digests import Name
from moerge_proto.recipes import FEDERATED
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.policy import Masks, Policy, PrivacyBudget

FILE = "worker.toml"


class Settings(BaseModel):
    """All settings of a worker. Unknown keys are errors.

    Attributes:
        policy: the table [policy].
        token: the owner's bearer token; never printed, and not read from worker.toml.
        token_file: a file with the token; by default `token` in the home.
        privacy: the table [privacy]; by default router contributions have no noise.
        masks: the table [masks]; by default router contributions have no masks.
        home: folder of the worker's key, journals, history and downloads.
        host_memory: bytes of hidden states in all slots, such as "16GB"; by default half of the free memory.
        journal_seconds: shortest time between two savings of a window's hidden states.
        statistics: the table [statistics]; `before = false` means no text before, no `before` the service's default.

    The help of `moerge worker run` describes the others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    policy: Policy = Policy()
    privacy: PrivacyBudget | None = None
    masks: Masks | None = None
    coordinator: str
    token: str = Field(repr=False)
    token_file: UserPath | None = None
    domain: Name
    expert: Path
    seed: Path | None = None
    data: list[str] = Field(min_length=1)
    text_field: str = "text"
    chat: str | None = None
    chat_turns: Literal["all", "assistant"] = "all"
    bad_share: float = Field(default=0.01, ge=0, lt=1)
    tuning_share: float = Field(default=0.0, ge=0, lt=1)
    held_out_share: float = Field(default=0.0, ge=0, lt=1)
    fit: bool | None = None
    home: UserPath
    license: str = "unknown"
    slots: int = Field(default=1, ge=1)
    device: Literal["cpu", "cuda"] = "cpu"
    ray_address: str | None = None
    host_memory: ByteSize | None = Field(default=None, ge=1)
    rejoin: bool = False
    once: bool = False
    dry_run: bool = False
    log_format: Literal["text", "json"] = "text"
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    journal_seconds: float = Field(default=60.0, ge=0)
    statistics: StatisticsSettings = Field(default=StatisticsSettings(), validate_default=True)

    @field_validator("statistics", mode="before")
    @classmethod
    def _without_text_before(cls, value: object) -> object:
        return {**value, "before": None} if isinstance(value, Mapping) and value.get("before") is False else value

    @field_validator("statistics")
    @classmethod
    def _text_before(cls, value: StatisticsSettings) -> StatisticsSettings:
        if "before" in value.model_fields_set or FEDERATED.before is None:
            return value
        return value.model_copy(update={"before": FEDERATED.before.within(value.context)})

    @field_validator("statistics")
    @classmethod
    def _within_the_policy(cls, value: StatisticsSettings, info: ValidationInfo) -> StatisticsSettings:
        policy: Policy = info.data.get("policy", Policy())
        bounds = [item for item in (value.tokens_per_document, policy.tokens_per_document) if item is not None]
        return value.model_copy(update={"tokens_per_document": min(bounds, default=None)})

    @model_validator(mode="after")
    def _leaves_statistics(self) -> Self:
        if self.tuning_share + self.held_out_share >= 1:
            raise ValueError("tuning_share and held_out_share must add up to less than 1")
        if self.policy.domains is not None and self.domain not in self.policy.domains:
            raise ValueError(f"the policy's domains are {', '.join(self.policy.domains) or 'none'}; not {self.domain}")
        for name in ("expert_weights", "router_contributions"):
            if self.fit and not getattr(self.policy, name):
                raise ValueError(f"fit needs {name} = true in the policy")
        if self.masks is not None and self.tuning_share:
            raise ValueError("masks and tuning_share exclude each other: tuning splits are not summed")
        if self.masks is not None and self.privacy is not None:
            raise ValueError("masks and privacy exclude each other: nobody can check a sum of masked sums with noise")
        if self.privacy is not None:
            self._require_noise_alone()
        if self.policy.evaluation_sums and not self.held_out_share:
            raise ValueError("policy.evaluation_sums needs held-out documents: set held_out_share, such as 0.1")
        if self.policy.evaluation_sums and self.statistics.context < 2:
            raise ValueError("policy.evaluation_sums needs a context of 2 or more tokens")
        return self

    def _require_noise_alone(self) -> None:
        """With a budget nothing else that depends on the text leaves; `noise.covered` knows the rest."""
        needs = {
            "fit = false": bool(self.fit),
            "evaluation_sums = false in the policy": self.policy.evaluation_sums,
        }
        for need, is_missing in needs.items():
            if is_missing:
                raise ValueError(f"privacy needs {need}: its noise is in router contributions alone")


def home_of(domain: str) -> Path:
    """The default home of a domain's worker."""
    return Path.home() / ".moerge" / f"worker-{domain}"


def read_settings(given: Mapping[str, Any], config: Path | None = None, *, alone: bool = False) -> Settings:
    """The settings in `config`, by default worker.toml in the home, overridden by the command line's (`given`).

    The token comes from the environment, or from the file `token_file`, by default `token` in the home. With `alone`
    coordinator and token are optional.

    Raises:
        MoergeError: a key or value is invalid or missing, or a file is unreadable.
    """
    home = _home(given)
    path = config or (home / FILE if home else None)
    values = {} if path is None else _read(path, is_default=config is None)
    places: dict[Keys, str] = {(key,): str(path) for key in values}
    for name in ("coordinator", "domain", "expert", "data"):
        places.setdefault((name,), f"{path or FILE}, or `{name}`")
    for name, value in given.items():
        keys: Keys = ("statistics", name) if name in StatisticsSettings.model_fields else (name,)
        put(values, keys, value)
        places[keys] = f"`{name}`"
    values.setdefault("home", home or home_of(str(values.get("domain"))))
    if alone and "coordinator" not in values:
        values |= {"coordinator": "", "token": ""}
    if "token" not in values:
        values["token"] = _token(values, places)
    settings, problems = built(Settings, values, places, str(path or FILE), ["token"])
    if settings is None:
        raise problems[0]
    folders = {name: checkpoint_folder(str(values[name])) for name in ("expert", "seed") if values.get(name)}
    folders["home"] = settings.home
    return settings.model_copy(  # Ray's processes run in other folders
        update={name: folder.absolute() for name, folder in folders.items()}
    )


def _home(given: Mapping[str, Any]) -> Path | None:
    """The home that the command line sets, or the default one of its domain."""
    if "home" in given:
        return Path(given["home"])
    return home_of(given["domain"]) if "domain" in given else None


def _read(path: Path, *, is_default: bool) -> dict[str, Any]:
    """The values in a file; the default one, in the home, is optional."""
    if is_default and not path.is_file():
        return {}
    values = read_toml(path)
    if "token" in values:
        todo = "put it into a file readable by you only, and set token_file to its name"
        raise MoergeError("a token must not be in this file", where=str(path), todo=todo)
    if is_default and "home" in values:
        raise MoergeError("home must not be set in the home's own file", where=str(path), todo="remove the key")
    return values


def _token(values: Mapping[str, Any], places: Mapping[Keys, str]) -> str:
    path = user_path(str(values.get("token_file", Path(str(values["home"])) / "token")))
    if path.is_file():
        return bearer_token(path.read_text(encoding="utf-8-sig", errors="replace"), str(path))
    where = places.get(("token_file",), "MOERGE_TOKEN")
    if is_bearer_token(path.name):
        raise MoergeError("token_file is a token", where=where, todo="write it into a file, and name that file")
    todo = f"set MOERGE_TOKEN, or put the token into {path}; the operator makes it (moerge owner approve)"
    raise MoergeError("no token", where=where, todo=todo)
