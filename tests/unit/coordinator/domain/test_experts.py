"""Experts: one of a domain, like all others, and taken in though others come at the same time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from moerge.bodies.merge import MergedBody
from moerge.errors import CheckpointError, IncompatibleExpertError
from moerge.fits.parts import write_parts
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import counts, expert_digest
from moerge.progress import NoProgress
from moerge_coordinator.domain import experts, owners
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.withdrawal import withdraw_expert
from moerge_coordinator.operation import seeds
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.tables import ExpertRow, HoldingRow
from moerge_proto.digests import sha256_hex
from moerge_proto.experts import Expert, ExpertState, NewExpert, Parts
from moerge_proto.messages import FileEntry
from moerge_proto.owners import Role
from moerge_proto.problems import Problem, ProblemType
from support.models import expert
from support.rows import add_expert

FOUND = Problem(type="urn:moerge:problem:invalid-checkpoint", title="x", status=409, detail="contains NaN")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes the folder of a random expert, once for each seed and settings."""
    home = tmp_path_factory.mktemp("models")

    def make(seed: int, **settings: object) -> Path:
        folder = home / sha256_hex(repr((seed, settings)).encode())
        small = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, **settings}
        return folder if folder.exists() else expert(folder, seed, **small)  # type: ignore[arg-type]  # no family

    return make


@dataclass
class Joining:
    """A coordinator with a seed and without experts; law's and art's owners, and `two`, who speaks for tax and code.

    `of`: the parts that are registered by default.
    """

    ports: Ports
    models: Callable[..., Path]
    of: Parts = field(default_factory=lambda: Parts(expert="1" * 64, body="0" * 64, fitted=True))

    def parts(self, seed: int, **settings: object) -> Path:
        """The folder of a random expert's parts."""
        folder = self.models(seed, **settings)
        target = folder.with_suffix(".parts")
        return target if target.exists() else write_parts(DenseFiles(folder), target)

    def seed(self, seed: int = 0, **settings: object) -> MergedBody:
        """The body of a registered seed, now the current one."""
        folder, ports = self.models(seed, **settings), self.ports
        body = seeds.register(ports.database, ports.blobs, str(folder), NoProgress())
        self.of = self.of.model_copy(update={"body": body.digest})
        return body

    def uploaded(self, owner: str, folder: Path) -> dict[str, str]:
        """Name -> digest of an expert's files, which the owner holds."""
        files = {}
        for path in sorted(path for path in folder.iterdir() if counts(path.name)):
            name, data = path.name, path.read_bytes()
            files[name] = sha256_hex(data)
            self.ports.blobs.put(name, lambda out, data=data: (out.write(data), sha256_hex(data))[1])  # type: ignore[misc]
            with self.ports.database.transaction("test") as session:
                session.merge(HoldingRow(owner=owner, sha256=files[name], size=len(data)))
        return files

    def register(self, domain: str, files: dict[str, str], /, **new: object) -> Expert:
        with self.ports.database.reading() as session:
            caller = owners.identity(session, Role.OWNER, "two" if domain in ("tax", "code") else f"{domain}-owner")
        given = {"domain": domain, "files": files, "parts": self.of, **new}
        return experts.register(self.ports, caller, NewExpert.model_validate(given))

    def join(self, domain: str, seed: int, **new: object) -> Expert:
        """The domain's expert, the parts of a random one, registered and accepted."""
        owner = "two" if domain in ("tax", "code") else f"{domain}-owner"
        expert = self.register(domain, self.uploaded(owner, self.parts(seed)), **new)
        with self.ports.database.transaction("test") as session:
            experts.accept(session, expert.digest)
        return expert.model_copy(update={"state": ExpertState.READY})

    def rows(self) -> dict[str, ExpertRow]:
        with self.ports.database.reading() as session:
            return {row.digest: row for row in session.scalars(select(ExpertRow))}

    def refusal(self, domain: str, files: dict[str, str], /, **new: object) -> tuple[str, str]:
        with pytest.raises(RefusedError) as caught:
            self.register(domain, files, **new)
        return caught.value.kind, caught.value.where


@pytest.fixture
def joining(ports: Ports, models: Callable[..., Path], tmp_path: Path) -> Joining:
    with ports.database.transaction("test") as session:
        for owner, *domains in (("law-owner", "law"), ("art-owner", "art"), ("two", "tax", "code")):
            owners.add(session, owner, domains)
    settings = Settings(home=tmp_path)
    result = Joining(Ports(settings, ports.database, ports.blobs, ports.folders, ports.uploads, ports.rules), models)
    result.seed()
    return result


def test_uploaded_expert_registration_is_idempotent(joining: Joining) -> None:
    files = joining.uploaded("law-owner", joining.parts(1))
    expert = joining.register("law", files)
    assert (expert.digest, expert.number, expert.owner) == (expert_digest(files), 1, "law-owner")
    assert (expert.state, expert.family) == (ExpertState.RECEIVED, "llama")
    assert all(entry.size == (joining.parts(1) / entry.name).stat().st_size for entry in expert.files)
    assert joining.register("law", files) == expert


def test_invalid_file_names_and_files_of_others_are_refused(joining: Joining) -> None:
    files = joining.uploaded("art-owner", joining.parts(1))
    assert joining.refusal("law", files) == (ProblemType.NOT_READY, "files.config.json")
    outside = "../config.json", "a/b.safetensors", ".x.safetensors", "", "x\0.safetensors", "x" * 201
    code = "modeling_evil.py", "pytorch_model.bin", "weights.pt", "a.pkl", "config.json.safetensors.bin"
    for name in (*outside, *code, "notes.txt", "adapter_config.json"):
        assert joining.refusal("art", files | {name: "0" * 64}) == (ProblemType.INVALID_REQUEST, "files"), name
    assert joining.refusal("law", files, domain="art")[0] is ProblemType.FORBIDDEN


def test_a_domain_has_one_expert_and_an_expert_one_domain(joining: Joining) -> None:
    law = joining.join("law", 1)
    assert joining.refusal("law", joining.uploaded("law-owner", joining.parts(2))) == (ProblemType.CONFLICT, "domain")
    same = joining.uploaded("art-owner", joining.parts(1))
    assert joining.refusal("art", same) == (ProblemType.CONFLICT, "files")
    assert all(joining.ports.blobs.has(file.sha256) for file in law.files), "its files stay"
    with joining.ports.database.transaction("test") as session:
        withdraw_expert(session, experts.find(session, law.digest), serve=True)
    other = joining.join("law", 2)
    assert {row.digest: row.state for row in joining.rows().values()} == {
        law.digest: ExpertState.WITHDRAWN, other.digest: ExpertState.READY,
    }  # fmt: skip
    with joining.ports.database.transaction("test") as session:
        withdraw_expert(session, experts.find(session, other.digest), serve=True)
    again = joining.join("law", 1)
    assert (again.number, again.withdrawn) == (law.number, None), "the same one comes again"


def test_refused_expert_can_be_registered_again_after_upload(joining: Joining) -> None:
    first = joining.register("law", joining.uploaded("law-owner", joining.parts(1)))
    with joining.ports.database.transaction("test") as session:
        experts.refuse(session, first.digest, FOUND)
        session.execute(delete(HoldingRow))
    files = {file.name: file.sha256 for file in first.files}
    assert joining.register("law", files).problem == FOUND, "it was not uploaded again"
    again = joining.register("law", joining.uploaded("law-owner", joining.parts(1)))
    assert (again.digest, again.state) == (first.digest, ExpertState.RECEIVED), "the others, or a setting, may differ"
    with joining.ports.database.transaction("test") as session:
        experts.refuse(session, first.digest, FOUND)
    with pytest.raises(IncompatibleExpertError):
        joining.register("law", joining.uploaded("law-owner", joining.parts(2, rms_norm_eps=1e-3)))
    assert list(joining.rows()) == []
    again = joining.register("law", joining.uploaded("law-owner", joining.parts(1)))
    assert (again.digest, again.state) == (first.digest, ExpertState.RECEIVED), "after another's try it is read again"
    with joining.ports.database.transaction("test") as session:
        experts.refuse(session, first.digest, FOUND)
    second = joining.register("law", joining.uploaded("law-owner", joining.parts(2)))
    assert list(joining.rows()) == [second.digest]


def test_parts_require_a_registered_seed_and_have_one_place(joining: Joining) -> None:
    files = joining.uploaded("law-owner", joining.parts(1))
    unknown = joining.of.model_copy(update={"body": "0" * 64})
    assert joining.refusal("law", files, parts=unknown) == (ProblemType.WRONG_BODY, "parts.body")
    parts = joining.join("law", 1, redistribute=True)
    assert (parts.parts, parts.redistribute) == (joining.of, True)
    files = {file.name: file.sha256 for file in parts.files}
    assert not joining.register("law", files, redistribute=False).redistribute
    for refused, number, fitted in (
        ((ProblemType.CONFLICT, "domain"), 2, True),  # there are some already
        ((ProblemType.CONFLICT, "parts"), 1, False),
    ):
        again = joining.uploaded("law-owner", joining.parts(number))
        assert joining.refusal("law", again, parts=joining.of.model_copy(update={"fitted": fitted})) == refused
    joining.seed(1)
    assert joining.join("law", 2).parts == joining.of, "one for each body"


@pytest.mark.parametrize(
    ("settings", "where", "problem"),
    [
        ({"vocab_size": 304}, "config.json: vocab_size", "has 304 tokens, the seed {} 300: added tokens aren't in"),
        ({"rms_norm_eps": 1e-3}, "config.json: rms_norm_eps", "differs from the seed {}: rms_norm_eps is 0.001"),
        ({"tokens": ("<new>",)}, "tokenizer.json: added_tokens", "has another tokenizer than the seed {}"),
    ],
)
def test_parts_unlike_the_seed_are_refused(
    joining: Joining, settings: dict[str, object], where: str, problem: str
) -> None:
    seed = joining.seed()
    files = joining.uploaded("law-owner", joining.parts(1, **settings))
    with pytest.raises(IncompatibleExpertError, match=problem.format(seed.source)) as caught:
        joining.register("law", files)
    assert (caught.value.where, joining.rows()) == (where, {})


def test_a_whole_expert_is_refused(joining: Joining) -> None:
    """Attention and embedding are not taken."""
    with pytest.raises(CheckpointError, match="no such tensor"):
        joining.register("law", joining.uploaded("law-owner", joining.models(1)))
    assert joining.rows() == {}


def test_incompatible_expert_is_refused_and_its_files_deleted(joining: Joining) -> None:
    kept = {digest for digest, _ in joining.ports.blobs.digests()}
    tax = joining.join("tax", 1)
    unlike = joining.parts(2, rms_norm_eps=1e-3)
    files = joining.uploaded("two", unlike)
    with pytest.raises(IncompatibleExpertError) as caught:
        joining.register("code", files)
    assert caught.value.where == "config.json: rms_norm_eps"
    kept |= {entry.sha256 for entry in tax.files}
    assert {digest for digest, _ in joining.ports.blobs.digests()} == kept, "what they share is tax's"
    assert list(joining.rows()) == [tax.digest]
    assert list(joining.ports.folders.experts.glob(".*")) == []


def entries_of(joining: Joining, owner: str, folder: Path) -> list[FileEntry]:
    return [
        FileEntry(name=name, sha256=sha256, size=(folder / name).stat().st_size)
        for name, sha256 in joining.uploaded(owner, folder).items()
    ]


def test_a_file_that_was_discarded_meanwhile_must_come_again(joining: Joining) -> None:
    entries = entries_of(joining, "law-owner", joining.parts(1))

    def known(session: Session) -> Expert | None:
        session.delete(session.get_one(HoldingRow, ("law-owner", entries[0].sha256)))
        session.flush()
        return None

    def add(session: Session, family: str) -> Expert:
        raise AssertionError(family)

    with pytest.raises(RefusedError, match="discarded meanwhile") as caught:
        experts.add_checked(joining.ports, "law-owner", entries, "law", known, add, joining.of)
    assert caught.value.where == f"files.{entries[0].name}"


def test_expert_withdrawn_during_validation_stays_withdrawn(session: Session) -> None:
    row = add_expert(session, "law", state=ExpertState.RECEIVED)
    withdraw_expert(session, row, serve=True)
    experts.accept(session, row.digest)
    assert row.state is ExpertState.WITHDRAWN
    assert experts.refuse(session, "0" * 64, FOUND) is None, "another has taken its place"
    refused = experts.refuse(session, row.digest, FOUND)
    assert refused is not None
    assert (refused.state, refused.problem) == (ExpertState.REFUSED, FOUND)
