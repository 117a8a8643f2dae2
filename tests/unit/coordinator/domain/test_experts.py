"""Experts: one of a domain, like all others, and taken in though others come at the same time."""

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from moerge.blobs.local import LocalBlobs
from moerge.errors import CheckpointError, IncompatibleExpertError
from moerge.experts.parts import write_parts
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import counts, expert_digest
from moerge.progress import NoProgress
from moerge.trunk.merge import MergedBody
from moerge_coordinator.domain import experts, owners
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.withdrawal import withdraw_expert
from moerge_coordinator.operation import seeds
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.tables import ExpertRow, HoldingRow, now
from moerge_proto.digests import sha256_hex
from moerge_proto.experts import Expert, ExpertState, NewExpert, Parts
from moerge_proto.messages import FileEntry
from moerge_proto.owners import Role
from moerge_proto.problems import Problem, ProblemType
from support.models import expert
from support.rows import add_body, add_expert, file_of

SOURCE = "https://models.example.org/law"
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
    """A coordinator without experts; law's and art's owners, and `two`, who speaks for tax and code."""

    ports: Ports
    models: Callable[..., Path]

    def parts(self, seed: int, **settings: object) -> Path:
        """The folder of a random expert's parts."""
        folder = self.models(seed, **settings)
        target = folder.with_suffix(".parts")
        return target if target.exists() else write_parts(DenseFiles(folder), target)

    def seed(self, seed: int = 0, **settings: object) -> MergedBody:
        """The body of a registered seed, now the current one."""
        folder, ports = self.models(seed, **settings), self.ports
        return seeds.register(ports.database, ports.blobs, str(folder), NoProgress())

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

    def register(self, domain: str, files: dict[str, str], role: Role = Role.OWNER, /, **new: object) -> Expert:
        with self.ports.database.reading() as session:
            owner = "two" if domain in ("tax", "code") else f"{domain}-owner"
            caller = owners.identity(session, role, owner if role is Role.OWNER else None)
        return experts.register(self.ports, caller, NewExpert.model_validate({"domain": domain, "files": files, **new}))

    def join(self, domain: str, seed: int, **new: object) -> Expert:
        """The domain's expert, registered and accepted; with `parts`, those of the random expert."""
        owner = "two" if domain in ("tax", "code") else f"{domain}-owner"
        folder = self.models(seed) if new.get("parts") is None else self.parts(seed)
        expert = self.register(domain, self.uploaded(owner, folder), **new)
        with self.ports.database.transaction("test") as session:
            assert experts.accept(
                session, expert.digest, [row.digest for row in experts.references(session, expert.digest)]
            )
        return expert.model_copy(update={"state": ExpertState.READY})

    def rows(self) -> dict[str, ExpertRow]:
        with self.ports.database.reading() as session:
            return {row.digest: row for row in session.scalars(select(ExpertRow))}

    def refusal(self, domain: str, files: dict[str, str], role: Role = Role.OWNER, /, **new: object) -> tuple[str, str]:
        with pytest.raises(RefusedError) as caught:
            self.register(domain, files, role, **new)
        return caught.value.kind, caught.value.where


@pytest.fixture
def joining(ports: Ports, models: Callable[..., Path], tmp_path: Path) -> Joining:
    settings = Settings(home=tmp_path, sources=["https://models.example.org"])
    with ports.database.transaction("test") as session:
        for owner, *domains in (("law-owner", "law"), ("art-owner", "art"), ("two", "tax", "code")):
            owners.add(session, owner, domains)
    return Joining(Ports(settings, ports.database, ports.blobs, ports.folders, ports.uploads), models)


def test_uploaded_expert_registration_is_idempotent(joining: Joining) -> None:
    files = joining.uploaded("law-owner", joining.models(1))
    expert = joining.register("law", files)
    assert (expert.digest, expert.number, expert.owner) == (expert_digest(files), 1, "law-owner")
    assert (expert.state, expert.family, expert.source) == (ExpertState.RECEIVED, "llama", None)
    assert all(entry.size == (joining.models(1) / entry.name).stat().st_size for entry in expert.files)
    assert joining.register("law", files) == expert


def test_invalid_file_names_and_files_of_others_are_refused(joining: Joining) -> None:
    files = joining.uploaded("art-owner", joining.models(1))
    assert joining.refusal("law", files) == (ProblemType.NOT_READY, "files.config.json")
    outside = "../config.json", "a/b.safetensors", ".x.safetensors", "", "x\0.safetensors", "x" * 201
    code = "modeling_evil.py", "pytorch_model.bin", "weights.pt", "a.pkl", "config.json.safetensors.bin"
    for name in (*outside, *code, "notes.txt", "adapter_config.json"):
        assert joining.refusal("art", files | {name: "0" * 64}) == (ProblemType.INVALID_REQUEST, "files"), name
    assert joining.refusal("law", files, domain="art")[0] is ProblemType.FORBIDDEN


def test_a_domain_has_one_expert_and_an_expert_one_domain(joining: Joining) -> None:
    law = joining.join("law", 1)
    assert joining.refusal("law", joining.uploaded("law-owner", joining.models(2))) == (ProblemType.CONFLICT, "domain")
    same = joining.uploaded("art-owner", joining.models(1))
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
    first = joining.register("law", joining.uploaded("law-owner", joining.models(1)))
    with joining.ports.database.transaction("test") as session:
        experts.refuse(session, first.digest, FOUND)
        session.execute(delete(HoldingRow))
    files = {file.name: file.sha256 for file in first.files}
    assert joining.register("law", files).problem == FOUND, "it was not uploaded again"
    again = joining.register("law", joining.uploaded("law-owner", joining.models(1)))
    assert (again.digest, again.state) == (first.digest, ExpertState.RECEIVED), "the others, or a setting, may differ"
    with joining.ports.database.transaction("test") as session:
        experts.refuse(session, first.digest, FOUND)
    with pytest.raises(IncompatibleExpertError):
        joining.register("law", joining.uploaded("law-owner", joining.models(2, mlp_bias=True)))
    assert list(joining.rows()) == []
    again = joining.register("law", joining.uploaded("law-owner", joining.models(1)))
    assert (again.digest, again.state) == (first.digest, ExpertState.RECEIVED), "after another's try it is read again"
    with joining.ports.database.transaction("test") as session:
        experts.refuse(session, first.digest, FOUND)
    second = joining.register("law", joining.uploaded("law-owner", joining.models(2)))
    assert list(joining.rows()) == [second.digest]
    fetched = joining.register("art", {"config.json": "1" * 64}, source=SOURCE)
    with joining.ports.database.transaction("test") as session:
        experts.refuse(session, fetched.digest, FOUND)
    again = joining.register("art", {"config.json": "1" * 64}, source=SOURCE)
    assert (again.state, again.problem) == (ExpertState.RECEIVED, None), "what was wrong may be mended there"


def test_parts_follow_redistribution_of_their_dense_expert(joining: Joining) -> None:
    law = joining.join("law", 1)
    with joining.ports.database.transaction("test") as session:
        body = add_body(session, [experts.find(session, law.digest)])
    of = Parts(expert=law.digest, body=body.digest, fitted=True)
    parts = joining.join("law", 2, parts=of, redistribute=True)
    assert not parts.redistribute, "the dense expert's setting counts"
    files = {file.name: file.sha256 for file in law.files}
    for permitted in (True, False, True):
        assert joining.register("law", files, redistribute=permitted).redistribute is permitted
        assert joining.rows()[parts.digest].redistribute is permitted
    assert joining.register("law", files, Role.OPERATOR, source=SOURCE).redistribute, "an operator changes nothing"


def test_an_operator_has_experts_fetched_for_their_owners(joining: Joining) -> None:
    files = {"config.json": "1" * 64}
    expert = joining.register("law", files, Role.OPERATOR, source=SOURCE)
    assert (expert.owner, expert.family, [file.size for file in expert.files]) == ("law-owner", "", [0])
    for refused, new in (
        ((ProblemType.FORBIDDEN, "redistribute"), {"redistribute": True}),
        ((ProblemType.NOT_FOUND, "domain"), {"domain": "nobody"}),
        ((ProblemType.FORBIDDEN, "source"), {"source": "https://example.com/law"}),
    ):
        assert joining.refusal("law", files, Role.OPERATOR, **{"source": SOURCE, **new}) == refused
    assert joining.refusal("law", files, Role.OPERATOR)[0] is ProblemType.FORBIDDEN, "it uploads nothing"


def test_parts_require_ready_expert_and_active_merged_body(joining: Joining) -> None:
    law, art = joining.join("law", 1), joining.join("art", 2)
    with joining.ports.database.transaction("test") as session:
        body = add_body(session, [experts.find(session, item.digest) for item in (law, art)])
        old = add_body(session, [experts.find(session, art.digest)], retired=now(session))
    of = Parts(expert=law.digest, body=body.digest, fitted=True)
    for change, kind, where in (
        ({"expert": art.digest}, ProblemType.NOT_READY, "parts.expert"),
        ({"expert": "0" * 64}, ProblemType.NOT_READY, "parts.expert"),
        ({"body": "0" * 64}, ProblemType.WRONG_BODY, "parts.body"),
        ({"body": old.digest}, ProblemType.WRONG_BODY, "parts.body"),
    ):
        files = joining.uploaded("law-owner", joining.parts(3))  # refused files are discarded
        assert joining.refusal("law", files, parts=of.model_copy(update=change)) == (kind, where)
    parts = joining.join("law", 3, parts=of)
    assert (parts.parts, parts.dense) == (of, law.digest)
    for refused, number, fitted in (
        ((ProblemType.CONFLICT, "domain"), 4, True),  # there are some already
        ((ProblemType.CONFLICT, "parts"), 3, False),
    ):
        files = joining.uploaded("law-owner", joining.parts(number))
        assert joining.refusal("law", files, parts=of.model_copy(update={"fitted": fitted})) == refused
    with joining.ports.database.transaction("test") as session:
        current = add_body(session, [experts.find(session, law.digest)])
    late = of.model_copy(update={"body": current.digest})
    files = joining.uploaded("law-owner", joining.parts(4))
    of_parts = late.model_copy(update={"expert": parts.digest})
    assert joining.refusal("law", files, parts=of_parts) == (ProblemType.NOT_READY, "parts.expert"), "of no parts"
    with joining.ports.database.transaction("test") as session:
        experts.find(session, law.digest).state = ExpertState.RECEIVED
    files = joining.uploaded("law-owner", joining.parts(4))
    assert joining.refusal("law", files, parts=late) == (ProblemType.NOT_READY, "parts.expert"), "not ready yet"


def test_parts_under_a_seed_body_are_complete_by_themselves(joining: Joining) -> None:
    seed = joining.seed()
    of = Parts(expert="1" * 64, body=seed.digest, fitted=True)
    parts = joining.join("law", 1, parts=of, redistribute=True)
    assert (parts.parts, parts.dense, parts.redistribute) == (of, "1" * 64, True)
    files = {file.name: file.sha256 for file in parts.files}
    assert not joining.register("law", files, parts=of, redistribute=False).redistribute, "nobody else's setting counts"
    again = joining.uploaded("law-owner", joining.parts(2))
    assert joining.refusal("law", again, parts=of) == (ProblemType.CONFLICT, "domain")
    art = joining.join("art", 2)
    files = joining.uploaded("law-owner", joining.parts(2))
    with joining.ports.database.transaction("test") as session:
        withdraw_expert(session, experts.find(session, parts.digest), serve=True)
    stolen = of.model_copy(update={"expert": art.digest})
    assert joining.refusal("law", files, parts=stolen) == (ProblemType.NOT_READY, "parts.expert"), "another's"
    with joining.ports.database.transaction("test") as session:
        withdraw_expert(session, experts.find(session, art.digest), serve=True)
    own = of.model_copy(update={"expert": art.digest, "fitted": False})
    assert joining.join("art", 3, parts=own).parts == own, "withdrawn, its attention and embedding have left"


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
    """Also with added tokens, whatever the setting `vocabulary` allows for merged bodies."""
    lax = joining.ports.settings.model_copy(update={"vocabulary": "pad"})
    joining.ports = dataclasses.replace(joining.ports, settings=lax)
    seed = joining.seed()
    of = Parts(expert="1" * 64, body=seed.digest, fitted=False)
    files = joining.uploaded("law-owner", joining.parts(1, **settings))
    with pytest.raises(IncompatibleExpertError, match=problem.format(seed.source)) as caught:
        joining.register("law", files, parts=of)
    assert (caught.value.where, joining.rows()) == (where, {})


def test_whole_expert_as_parts_and_parts_as_whole_are_refused(joining: Joining) -> None:
    """Attention and embedding are not taken, if they come with parts."""
    of = Parts(expert="1" * 64, body=joining.seed().digest, fitted=False)
    for folder, parts, problem in (
        (joining.models(1), of, "no such tensor"),
        (joining.parts(1), None, "tensor not found"),
    ):
        with pytest.raises(CheckpointError, match=problem):
            joining.register("law", joining.uploaded("law-owner", folder), parts=parts)
    assert joining.rows() == {}


def test_incompatible_expert_is_refused_and_its_files_deleted(joining: Joining) -> None:
    tax = joining.join("tax", 1)
    unlike = joining.models(2, rms_norm_eps=1e-3)
    files = joining.uploaded("two", unlike)
    with pytest.raises(IncompatibleExpertError) as caught:
        joining.register("code", files)
    assert caught.value.where == "config.json: rms_norm_eps"
    kept = {entry.sha256 for entry in tax.files}
    assert {digest for digest, _ in joining.ports.blobs.digests()} == kept, "what they share is tax's"
    assert list(joining.rows()) == [tax.digest]
    assert list(joining.ports.folders.experts.glob(".*")) == []


def test_unready_experts_and_parts_are_not_used_as_reference(joining: Joining) -> None:
    with joining.ports.database.transaction("test") as session:
        for domain, change in (
            ("one", {"family": "", "state": ExpertState.RECEIVED}),
            ("two-", {"state": ExpertState.REFUSED}),
            ("three", {"parts": ("0" * 64, "1" * 64)}),
        ):
            add_expert(session, domain, **change)
    assert joining.join("law", 1).family == "llama"


def entries_of(joining: Joining, owner: str, folder: Path) -> list[FileEntry]:
    return [
        FileEntry(name=name, sha256=sha256, size=(folder / name).stat().st_size)
        for name, sha256 in joining.uploaded(owner, folder).items()
    ]


@pytest.mark.parametrize("unlike", [False, True])
def test_an_expert_is_checked_again_if_another_came_meanwhile(joining: Joining, *, unlike: bool) -> None:
    """Two that come at once to a coordinator without experts could each be the first."""
    art = joining.models(2, rms_norm_eps=1e-3) if unlike else joining.models(2)
    entries, others = entries_of(joining, "law-owner", joining.models(1)), entries_of(joining, "art-owner", art)
    looked: list[int] = []

    def known(session: Session) -> Expert | None:
        if not looked:
            add_expert(session, "art", files=others)
        looked.append(len(session.scalars(select(ExpertRow)).all()))
        return None

    def add(session: Session, family: str) -> Expert:
        row = add_expert(session, "law", files=entries, family=family)
        return Expert.model_validate(row, from_attributes=True)

    if unlike:
        with pytest.raises(IncompatibleExpertError):
            experts.add_checked(joining.ports, "law-owner", entries, "law", known, add)
        assert (len(looked), len(joining.rows())) == (1, 1)
    else:
        assert experts.add_checked(joining.ports, "law-owner", entries, "law", known, add).family == "llama"
        assert looked == [1, 1], "twice, and no more"


def test_a_file_that_was_discarded_meanwhile_must_come_again(joining: Joining) -> None:
    entries = entries_of(joining, "law-owner", joining.models(1))

    def known(session: Session) -> Expert | None:
        session.delete(session.get_one(HoldingRow, ("law-owner", entries[0].sha256)))
        session.flush()
        return None

    def add(session: Session, family: str) -> Expert:
        raise AssertionError(family)

    with pytest.raises(RefusedError, match="discarded meanwhile") as caught:
        experts.add_checked(joining.ports, "law-owner", entries, "law", known, add)
    assert caught.value.where == f"files.{entries[0].name}"


def test_expert_withdrawn_during_validation_stays_withdrawn(session: Session) -> None:
    row = add_expert(session, "law", state=ExpertState.RECEIVED)
    withdraw_expert(session, row, serve=True)
    assert experts.accept(session, row.digest, [])
    assert row.state is ExpertState.WITHDRAWN
    assert experts.refuse(session, "0" * 64, FOUND) is None, "another has taken its place"
    refused = experts.refuse(session, row.digest, FOUND)
    assert refused is not None
    assert (refused.state, refused.problem) == (ExpertState.REFUSED, FOUND)


def test_weights_are_compared_with_oldest_of_three_owners(session: Session) -> None:
    owners.add(session, "many", ["a", "b", "c"])
    rows = {domain: add_expert(session, domain) for domain in ("a", "b", "x", "y", "z", "w")}
    body = add_body(session, [rows["x"]])

    def compared(digest: str) -> list[str]:
        return [row.domain for row in experts.references(session, digest)]

    new = add_expert(session, "new", state=ExpertState.RECEIVED)
    assert compared(new.digest) == ["a", "x", "y"]
    assert compared(add_expert(session, "c").digest) == ["x", "y", "z"], "its owner's are not among them"
    fitted = add_expert(session, "y", parts=(rows["y"].digest, body.digest))
    assert compared(fitted.digest) == [], "they depend on their text"
    own, other = (add_expert(session, domain, (rows["z"].digest, body.digest), fitted=False) for domain in ("z", "w"))
    assert (compared(own.digest), compared(other.digest)) == (["w"], ["z"]), "parts with parts"
    assert not experts.accept(session, new.digest, ["a"]), "another came meanwhile"
    assert new.state is ExpertState.RECEIVED
    for domain in ("x", "y", "z", "w"):
        withdraw_expert(session, rows[domain], serve=True)
    assert compared(rows["b"].digest) == ["new"] or compared(rows["b"].digest) == ["a"], "else its owner's own"
    assert experts.accept(session, new.digest, [rows["a"].digest])


def test_reference_is_the_oldest_with_the_longest_vocabulary(joining: Joining) -> None:
    digests = []
    for seed, vocab in ((1, 300), (2, 304), (3, 304)):
        entries = entries_of(joining, "law-owner", joining.models(seed, vocab_size=vocab))
        with joining.ports.database.transaction("test") as session:
            digests.append(add_expert(session, f"domain-{seed}", files=entries).digest)
    folders = joining.ports.folders
    reference = folders.reference(digests)
    assert reference is not None
    assert reference.folder == folders.experts / digests[1]
    assert folders.reference([]) is None
    (folders.experts / digests[1] / "config.json").unlink()
    assert (folders.expert(digests[1]).folder / "config.json").is_file(), "a folder is made whole on demand"
    assert isinstance(joining.ports.blobs, LocalBlobs)
    shutil.rmtree(folders.experts)
    with joining.ports.database.transaction("test") as session:
        experts.find(session, digests[0]).files = [file_of("not kept")]
    with pytest.raises(FileNotFoundError):
        folders.expert(digests[0])
