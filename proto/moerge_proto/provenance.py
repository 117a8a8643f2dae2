"""Provenance of versions: SLSA 1.0 (slsa.dev/spec/v1.0/provenance) in an in-toto statement, signed as `model.sig` is.

`provenance.sigstore.json` names a version's inputs by digest, with their owners and the owners' signatures. It has no
other facts about owners than the model card, except their public keys. The statement is a pure function of the lineage,
the owners' signatures and the build; it has no time. The card changes later, so it is not a subject.

External parameters are the digest of the body, the method of the head, the domains in order, and the solve options. An
input that is a contribution is named by the SHA-256 of its file, and so is a sum, beside its contributions. The digests
of body, seed and expert are those of the lineage; an expert's is that of its files' digests.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.alias_generators import to_camel

from moerge_proto.digests import Digest, canonical_json
from moerge_proto.signatures import PublicKey, Signature, SignedInput
from moerge_proto.version_files import CARD_FILE

Kind = Literal["body", "seed", "expert", "router contribution", "router sum", "head contribution"]
_STATEMENT: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
_PREDICATE: Literal["https://slsa.dev/provenance/v1"] = "https://slsa.dev/provenance/v1"
_BUILD_TYPE: Literal["pkg:pypi/moerge#version/v1"] = "pkg:pypi/moerge#version/v1"
_BUILDER: Literal["pkg:pypi/moerge"] = "pkg:pypi/moerge"


class _Part(BaseModel):
    """A part of a statement. SLSA's consumers ignore fields that they don't know."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class _Sha256(_Part):
    sha256: Digest


class _Commit(_Part):
    git_commit: str


class _Subject(_Part):
    name: str
    digest: _Sha256


class Origin(_Part):
    """The kind of an input, and from whom it came. Body and seed have no owner, and unsigned inputs no key.

    `body`: as in `SignedInput`.
    """

    kind: Kind
    domain: str | None = None
    body: Digest | None = None
    owner: str | None = None
    public_key: PublicKey | None = None
    signature: Signature | None = None


class Input(_Part):
    """An input of a version."""

    name: str
    digest: _Sha256
    annotations: Origin

    @classmethod
    def of(cls, digest: Digest, origin: Origin) -> Self:
        name = origin.kind if origin.domain is None else f"{origin.kind} of {origin.domain}"
        return cls(name=name, digest=_Sha256(sha256=digest), annotations=origin)

    @property
    def is_signed(self) -> bool:
        """Tell whether it has an owner's signature, genuine or not."""
        return self.annotations.signature is not None

    @property
    def is_genuine(self) -> bool:
        """Tell whether its signature is by its public key, over these facts."""
        origin = self.annotations
        facts = {"kind": origin.kind, "digest": self.digest.sha256}
        try:
            signed = SignedInput.model_validate({**origin.model_dump(include={"owner", "domain", "body"}), **facts})
        except ValidationError:
            return False
        return signed.is_by(origin.public_key, origin.signature)


class _BuilderDependency(_Part):
    name: Literal["moerge"] = "moerge"
    digest: _Commit


class _Builder(_Part):
    id: Literal["pkg:pypi/moerge"] = _BUILDER
    version: dict[str, str]
    builder_dependencies: list[_BuilderDependency] = []


class _RunDetails(_Part):
    builder: _Builder


class _BuildDefinition(_Part):
    build_type: Literal["pkg:pypi/moerge#version/v1"] = _BUILD_TYPE
    external_parameters: dict[str, JsonValue]
    internal_parameters: dict[str, JsonValue]
    resolved_dependencies: list[Input]


class _Predicate(_Part):
    build_definition: _BuildDefinition
    run_details: _RunDetails


class Provenance(_Part):
    """A version's provenance as an in-toto statement."""

    type: Annotated[Literal["https://in-toto.io/Statement/v1"], Field(alias="_type")] = _STATEMENT
    subject: list[_Subject]
    predicate_type: Literal["https://slsa.dev/provenance/v1"] = _PREDICATE
    predicate: _Predicate

    @classmethod
    def make(
        cls,
        files: Mapping[str, Digest],
        parameters: Mapping[str, JsonValue],
        solver: str,
        inputs: list[Input],
        release: str,
        commit: str | None,
    ) -> Self:
        """The provenance of a version.

        Args:
            files: name -> SHA-256 of every file; the card is left out.
            release, commit: of moerge; a commit may be unknown.
        """
        source = [] if commit is None else [_BuilderDependency(digest=_Commit(git_commit=commit))]
        definition = _BuildDefinition(
            external_parameters=dict(parameters), internal_parameters={"solver": solver}, resolved_dependencies=inputs
        )
        details = _RunDetails(builder=_Builder(version={"moerge": release}, builder_dependencies=source))
        named = sorted((name, digest) for name, digest in files.items() if name != CARD_FILE)
        return cls(
            subject=[_Subject(name=name, digest=_Sha256(sha256=digest)) for name, digest in named],
            predicate=_Predicate(build_definition=definition, run_details=details),
        )

    @classmethod
    def of(cls, statement: bytes) -> Self:
        """Parses a statement; ValueError: it is not the provenance of a version."""
        try:
            return cls.model_validate_json(statement)
        except ValidationError as error:
            raise ValueError("not the provenance of a version by moerge") from error

    def statement(self) -> bytes:
        """Its canonical JSON."""
        return canonical_json(self.model_dump(mode="json", by_alias=True, exclude_none=True))

    @property
    def files(self) -> dict[str, Digest]:
        """Name -> SHA-256 of every file but the card."""
        return {subject.name: subject.digest.sha256 for subject in self.subject}

    @property
    def inputs(self) -> list[Input]:
        return self.predicate.build_definition.resolved_dependencies

    @property
    def body(self) -> JsonValue:
        """The digest of the version's body."""
        return self.predicate.build_definition.external_parameters.get("body")

    @property
    def owner_keys(self) -> dict[str, set[PublicKey | None]]:
        """Owner -> the keys that signed its inputs; None of an unsigned one."""
        result = dict[str, set[PublicKey | None]]()
        for item in self.inputs:
            if (owner := item.annotations.owner) is not None:
                result.setdefault(owner, set()).add(item.annotations.public_key if item.is_signed else None)
        return result

    @property
    def release(self) -> str:
        return self.predicate.run_details.builder.version.get("moerge", "")
