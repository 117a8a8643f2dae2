"""A recipe: the choices of a merge, or of a version in the service, by options, in a YAML file, or in Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from moerge.bodies.lineage import BodyOptions
from moerge.errors import MoergeError
from moerge.merging.report import SCORED_TOKENS
from moerge.settings import key_of, valid
from moerge_proto.bodies import BodyMethod, HeadMethod
from moerge_proto.recipes import (
    VERSION_RECIPES,
    DomainWeights,
    LambdaScale,
    RecipeName,
    Routers,
    SolveOptions,
    VersionRecipe,
)
from moerge_proto.statistics_file import StatisticsSettings, TextBefore

PROMPT_TOKENS = 10_000


@dataclass(frozen=True)
class Paths:
    """Marks a field of paths: files; checkpoints, also of the hub, or base+adapter; or prompts, a file's behind @."""

    kind: Literal["checkpoint", "files", "prompt"]


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


_Texts = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
_Checkpoints = Annotated[dict[str, str], Paths("checkpoint")]
_Files = Annotated[dict[str, _Texts], Paths("files")]


class Recipe(BaseModel):
    """The options of `moerge merge` and `moerge version solve`, except those of one run. None: not given.

    `SolveOptions` has the meaning of its fields; an option's help that of the option; the others:

    Attributes:
        prompt_tokens: tokens of text that an expert writes by its prompts.
        weights: weight of each domain's expert in the body `weighted`. Default: 1.
        before: take router statistics behind short public texts that come with moerge. Default: `false`.
        chat_template: whose chat template, tokenizer and generation settings the model has: a domain's. In a merge also
            `base` or `auto`, the default: the base's under the body `seed`, otherwise the first expert's.
        text_field: field or column with a document's text.
        precision: number format of the passes. Default: `float32`.
        slots: shards at a time on a CPU. Default: one per core, or fewer by memory.
        host_memory: memory for hidden states, such as `16GB`. Default: half of the free memory.
        license: SPDX identifier of each expert's licence, for the model card; `base`: the base's. Default: unknown.
        scored_tokens: scored tokens of each domain in the final table; 0: no table.
        tied: omit a head that equals the embedding. Default: `false`.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )

    expert: _Checkpoints = Field(default_factory=dict)
    text: _Files = Field(default_factory=dict)
    prompt: Annotated[dict[str, _Texts], Paths("prompt")] = Field(default_factory=dict)
    held_out: _Files = Field(default_factory=dict)
    prompt_tokens: int = Field(default=PROMPT_TOKENS, ge=1)
    add: _Checkpoints = Field(default_factory=dict)
    from_: Annotated[str | None, Paths("files")] = Field(
        default=None, validation_alias="from", serialization_alias="from"
    )
    recipe: RecipeName | None = None
    body: BodyMethod | None = None
    head: HeadMethod | None = None
    base: Annotated[str | None, Paths("checkpoint")] = None
    weights: dict[str, float] = Field(default_factory=dict, validation_alias="weight", serialization_alias="weight")
    ridge_lambda: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, validation_alias="lambda", serialization_alias="lambda"
    )
    lambda_scale: LambdaScale | None = None
    domain_weights: DomainWeights | None = None
    routers: Routers | None = None
    top_k: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    fit: bool | None = None
    before: bool | None = None
    tied: bool | None = None
    chat_template: str | None = None
    text_field: str = "text"
    chat: str | None = None
    context: int | None = Field(default=None, ge=2)
    precision: Literal["float32", "bfloat16"] | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    slots: int | None = Field(default=None, ge=1)
    host_memory: str | None = None
    license: dict[str, str] = Field(default_factory=dict)
    scored_tokens: int = Field(default=SCORED_TOKENS, ge=0)
    keep_statistics: bool = False

    @property
    def solve(self) -> dict[str, Any]:
        """The given options of the solve, by the fields of `SolveOptions`."""
        values = {name: getattr(self, name) for name in SolveOptions.model_fields}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def followed(self) -> VersionRecipe:
        """The named recipe with the given options."""
        named = VERSION_RECIPES[self.recipe or "recommended"]
        return named.model_copy(
            update={
                "body": self.body or named.body,
                "head": self.head or named.head,
                "fit": named.fit if self.fit is None else self.fit,
                "solve": named.solve.model_copy(update=self.solve),
                "before": named.before if self.before is None else TextBefore() if self.before else None,
            }
        )

    @property
    def body_options(self) -> BodyOptions:
        return valid(BodyOptions, {"weights": self.weights})

    @property
    def statistics(self) -> StatisticsSettings:
        given = {"context": self.context, "precision": self.precision}
        return StatisticsSettings.model_validate({name: value for name, value in given.items() if value is not None})


KEYS = {name: key_of(name, field) for name, field in Recipe.model_fields.items()}
"""Field -> its key in a file."""
PATHS = {
    name: mark.kind for name, field in Recipe.model_fields.items() for mark in field.metadata if isinstance(mark, Paths)
}
"""Field of paths -> their kind."""
NAMED = [name for name, field in Recipe.model_fields.items() if get_origin(field.annotation) is dict]
"""Fields that are mappings by domain; as options, NAME=VALUE."""
OF_SOLVE = ("recipe", "head", *SolveOptions.model_fields, "tied", "chat_template")
"""Fields of a version in the service."""
OF_MERGE = tuple(name for name in Recipe.model_fields if name != "tied")


def require_only(recipe: Recipe, fields: Sequence[str], command: str) -> None:
    """Requires that a recipe has no other field than these of a command."""
    for name in Recipe.model_fields:
        if name in recipe.model_fields_set and name not in fields:
            todo = f"remove it; the keys are: {', '.join(KEYS[field] for field in fields)}"
            raise MoergeError(f"{KEYS[name]} is not a key of {command}", where=f"`{name}`", todo=todo)
