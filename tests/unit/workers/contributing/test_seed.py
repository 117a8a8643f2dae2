"""Under the seed's body: it is compared with the owner's copy before any text is read, and only parts leave."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.filesize import decimal
from safetensors.torch import load_file

from moerge.bodies.merge import DENSE_BODY_FILE, seed_digest
from moerge.errors import IncompatibleExpertError, MoergeError
from moerge.files import file_sha256
from moerge.fits.fitting import PublicText, fit
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, dense_folder
from moerge_proto.bodies import Body
from moerge_proto.messages import FileEntry
from moerge_proto.progress import Obstacle
from moerge_workers.check import _Fleet
from moerge_workers.computing.finishing import Finishing
from moerge_workers.contributing import parts
from moerge_workers.contributing.seed import OtherBodyError
from moerge_workers.outgoing.history import History
from support.models import adapter, expert, seed_model, texts
from support.stages import POLICY, MemoryClient, Run, registered, run_of


@contextmanager
def served_run(owner: tuple[Path, Body], home: Path, **given: Any) -> Iterator[tuple[Run, MemoryClient]]:
    folder, served = owner
    client = MemoryClient(served)
    with run_of(folder, home, client, **given) as run:
        yield run, client


def ran(owner: tuple[Path, Body], home: Path, **given: Any) -> MemoryClient:
    with served_run(owner, home, **given) as (run, client):
        run.stages()
    return client


def names_of(path: Path) -> set[str]:
    return set(load_file(path))


@pytest.mark.parametrize("fit", [None, False])
def test_law_1_only_parts_and_sums_leave_and_no_body_comes(
    owner: tuple[Path, Body], home: Path, fit: bool | None
) -> None:
    client = ran(owner, home, fit=fit)
    [parts] = client.known.values()
    own = DenseExpert("law", owner[0] / "expert").digest
    assert (parts.parts.expert, parts.parts.body, parts.parts.fitted) == (own, owner[1].digest, fit is None)
    rows = client.rows.values()
    assert [(row.kind, row.expert) for row in rows] == [("head", parts.digest), ("router", parts.digest)]
    weights, head, router = [path for path in client.uploaded if path.suffix == ".safetensors"]
    for name in names_of(weights):
        assert ".mlp." in name or name in ("model.norm.weight", "lm_head.weight")
    assert names_of(head) == {"head_input"}
    assert {name.split(".")[-1] for name in names_of(router)} == {"gram", "cross"}


def test_a_fit_has_the_own_seed_s_answers_to_public_texts(
    owner: tuple[Path, Body], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[Path]()

    def watched(expert: DenseExpert, *given: Any) -> Path:
        *_, public, threads = given
        assert isinstance(public, PublicText)
        assert len(public.batches) > 0
        assert threads == 1
        seen.append(public.seed.folder)
        return fit(expert, *given)

    monkeypatch.setattr(parts, "fit", watched)
    ran(owner, home, fit=None)
    assert seen == [owner[0] / "seed"]


def test_second_run_sends_nothing_and_uses_the_same_files(owner: tuple[Path, Body], home: Path) -> None:
    client = ran(owner, home, fit=None)
    sent, kept = len(client.uploaded), {path for path in home.rglob("*") if path.is_file()}
    registered(seed_model(home / "former", apart=0.006), home / "seed" / ("0" * 16))
    with run_of(owner[0], home, client, fit=None) as run:
        run.stages()
    assert len(client.uploaded) == sent
    assert len(list((home / "seed").glob(f"*/{DENSE_BODY_FILE}"))) == 1, "a former seed's body is removed"
    assert all(path.is_file() for path in kept)


def one_bit(served: Body, folder: Path) -> Body:
    """The body as a coordinator would have it that changed one bit of it, and computed every name anew."""
    path = folder / DENSE_BODY_FILE
    data = bytearray((folder.parent / "registered" / DENSE_BODY_FILE).read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    sha256 = file_sha256(path)
    files = [FileEntry(name=path.name, sha256=sha256, size=len(data)), *served.files[1:]]
    return served.model_copy(update={"files": files, "digest": seed_digest(sha256, served.config, served.exponents)})


def other_exponents(served: Body, folder: Path) -> Body:
    exponents = [served.exponents[0] + 1, *served.exponents[1:]]
    digest = seed_digest(served.files[0].sha256, served.config, exponents)
    return served.model_copy(update={"exponents": exponents, "digest": digest})


def other_config(served: Body, folder: Path) -> Body:
    config = {**served.config, "rms_norm_eps": 0.001}
    digest = seed_digest(served.files[0].sha256, config, served.exponents)
    return served.model_copy(update={"config": config, "digest": digest})


def other_name(served: Body, folder: Path) -> Body:
    return served.model_copy(update={"digest": "7" * 64})


def other_shape(served: Body, folder: Path) -> Body:
    return served.model_copy(update={"layers": served.layers + 1})


def without_file(served: Body, folder: Path) -> Body:
    return served.model_copy(update={"files": served.files[1:]})


@pytest.mark.parametrize(
    ("forged", "told"),
    [
        (one_bit, r"isn't your seed's: it is another revision of the seed, or forged; SHA-256 expected \w{64}, found"),
        (other_exponents, "the coordinator's exponents aren't your seed's"),
        (other_name, "the coordinator's body has another name: expected .*, found 7{64}"),
        (other_config, "another config: rms_norm_eps is 0.001; your seed's is 1e-06"),
        (other_shape, "another config: num_hidden_layers is 4; your seed's is 3"),
        (without_file, "expected .*, found None"),
    ],
)
def test_law_1_forged_body_is_refused_before_text_is_read(
    owner: tuple[Path, Body], home: Path, forged: Callable[[Body, Path], Body], told: str
) -> None:
    folder, served = owner
    (place := folder / forged.__name__).mkdir()
    with served_run((folder, forged(served, place)), home) as (run, client):
        (home / "texts.jsonl").unlink()  # so that reading it is another error
        with pytest.raises(OtherBodyError, match=told) as caught:
            run.stages()
        assert run.documents.events.status.state.obstacle is Obstacle.BODY_REFUSED
        assert run.history.items() == []
    assert "called org/seed there" in caught.value.todo
    assert (client.uploaded, client.known, client.rows) == ([], {}, {})


def test_worker_continues_with_the_genuine_body_after_a_forged_one(
    owner: tuple[Path, Body], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, served = owner

    class Mended(MemoryClient):
        def current_body(self) -> Body | None:
            if self.rows:
                raise MoergeError("enough")
            return next(bodies)

    forged = other_name(served, folder)
    client, bodies = Mended(forged), iter([forged, forged, served, served, served, served])
    with run_of(folder, home, client, once=False) as run, pytest.raises(MoergeError, match="enough"):
        run.stages()
    assert f"sending nothing under body {'7' * 12}: " in capsys.readouterr().err
    assert {row.body for row in client.rows.values() if row.kind == "router"} == {served.digest}


def test_unset_seed_is_an_error_that_names_the_setting(owner: tuple[Path, Body], home: Path) -> None:
    with (
        served_run(owner, home, seed=None) as (run, client),
        pytest.raises(MoergeError, match="your own copy of the seed isn't set") as caught,
    ):
        run.stages()
    assert caught.value.where == "`seed`"
    assert "org/seed" in caught.value.todo
    assert client.uploaded == []


def test_without_a_body_nothing_leaves_and_no_text_is_read(
    owner: tuple[Path, Body], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served_run(owner, home, dry_run=True) as (run, client):
        (home / "texts.jsonl").unlink()
        client.current = None
        run.stages()
    assert "the operator must run: moerge coordinator seed" in capsys.readouterr().err
    assert client.uploaded == []


def test_dry_run_shows_parts_and_contributions_and_sends_nothing(
    owner: tuple[Path, Body], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = ran(owner, home, dry_run=True, fit=None)
    shown = capsys.readouterr().err
    for part in (
        f"law: parts with fitted MLPs for body {owner[1].digest[:12]}",
        "MLPs, last norm and head",
        "head contribution",
        "router contribution",
    ):
        assert part in shown
    assert "not: the expert's attention" in shown
    assert client.uploaded == []


def test_owner_in_ask_mode_is_asked_about_each_item(owner: tuple[Path, Body], home: Path) -> None:
    asked = []
    with served_run(owner, home, policy={**POLICY, "mode": "ask"}) as (run, client):
        for _ in range(3):
            run.stages()
            for item in run.history.asked():
                asked.append((item.kind, item.body))
                run.history.note(item, "approved")
    digest = owner[1].digest
    assert asked == [("expert", digest), ("head", ""), ("router", digest)]
    assert len(client.rows) == 2


def test_refused_parts_end_the_run(owner: tuple[Path, Body], home: Path) -> None:
    with served_run(owner, home, once=False, policy={**POLICY, "mode": "ask"}) as (run, client):
        with served_run(owner, home, policy={**POLICY, "mode": "ask"}) as (first, _):
            first.stages()
            [item] = first.history.asked()
            first.history.note(item, "refused")
        run.stages()
    assert client.uploaded == []


@pytest.mark.parametrize(
    ("changed", "where", "told"),
    [
        ({"tokens": ["<new>"], "vocab_size": 401}, "config.json: vocab_size", "added tokens aren't in the seed's"),
        ({"tokens": ["<new>"]}, "tokenizer.json: added_tokens", "has another tokenizer than the seed"),
        ({"rms_norm_eps": 0.001}, "config.json: rms_norm_eps", "differs from the seed .*: rms_norm_eps is"),
    ],
)
def test_expert_of_another_seed_is_refused_in_words(
    owner: tuple[Path, Body], home: Path, changed: dict[str, Any], where: str, told: str
) -> None:
    own = expert(home / "other", 1, **changed)
    with (
        served_run(owner, home, expert=own) as (run, client),
        pytest.raises(IncompatibleExpertError, match=told) as caught,
    ):
        run.stages()
    assert caught.value.where == where
    assert client.uploaded == []


def test_seed_with_another_vocabulary_is_refused_in_words(owner: tuple[Path, Body], home: Path) -> None:
    seed, own = (make(home / name, **{"vocab_size": 416}) for name, make in (("seed", seed_model), ("own", _own)))
    with (
        served_run(owner, home, seed=seed, expert=own) as (run, _),
        pytest.raises(OtherBodyError, match="another config: vocab_size is 300; your seed's is 416"),
    ):
        run.stages()


def _own(folder: Path, **settings: Any) -> Path:
    return expert(folder, 1, **settings)


def test_adapter_of_the_seed_contributes_like_a_dense_expert(owner: tuple[Path, Body], home: Path) -> None:
    lora = adapter(home / "lora", owner[0] / "seed", seed=3)
    with served_run(owner, home, expert=lora) as (given, client):
        own = replace(given.expert, folder=dense_folder(DenseFiles(lora), home / "expert"), adapter=lora)
        given.of(own).stages()
    [parts] = client.known.values()
    assert (parts.parts.expert, parts.adapter) == (own.digest, None)
    assert [row.kind for row in client.rows.values()] == ["head", "router"]


def test_tied_head_is_sent_as_the_embedding_s_rows_and_said(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tied = tmp_path / "tied"
    own = expert(tied / "expert", 1, tie_word_embeddings=True)
    served = registered(seed_model(tied / "seed", tie_word_embeddings=True), tied / "registered")
    client = ran((tied, served), home)
    [weights] = [path for path in client.uploaded if path.name == "model.safetensors"]
    embedding = load_file(own / "model.safetensors")["model.embed_tokens.weight"]
    assert load_file(weights)["lm_head.weight"].equal(embedding)
    assert "the expert's head is its embedding (tied)" in capsys.readouterr().err


def test_law_1_head_contributions_of_all_parts_have_one_ledger(owner: tuple[Path, Body], home: Path) -> None:
    """Its sums are the dense expert's, so a second digest would give a difference of single documents."""

    def documents(fit: bool, more: int = 0) -> list[tuple[str, int, bool]]:
        with (home / "texts.jsonl").open("a") as out:
            out.write(texts(home / "more.jsonl", 9 + more, more).read_text() if more else "")
        with run_of(owner[0], home, client, fit=fit) as run:
            run.stages()
        return [(row.expert, row.documents, row.active) for row in client.rows.values() if row.kind == "head"]

    client = MemoryClient(owner[1])
    [(own_parts, first, _)] = documents(False)
    assert documents(True, more=1) == [(own_parts, first, True)]
    assert len(client.known) == 2
    assert documents(True, more=20) == [(own_parts, first, False), (own_parts, first + 21, True)]
    client.rows = {digest: row for digest, row in client.rows.items() if row.kind != "head"}  # as after a withdrawal
    [(fitted_parts, again, _)] = documents(True)
    assert fitted_parts != own_parts
    assert again == first + 21


def test_question_about_a_parts_head_ends_with_the_body(owner: tuple[Path, Body], home: Path) -> None:
    class Replaced(MemoryClient):
        def current_body(self) -> Body | None:
            with closing(History(home)) as history:  # the worker's own is of another thread
                asked = history.asked()
            if any(item.kind == "head" for item in asked):
                self.current = other_name(owner[1], home)
            elif self.current != owner[1]:
                raise MoergeError("enough")
            return self.current

    client = Replaced(owner[1])
    with run_of(owner[0], home, client) as run:
        run.register(owner[1])
    asking = {**POLICY, "mode": "ask"}
    with run_of(owner[0], home, client, once=False, policy=asking) as run, pytest.raises(MoergeError, match="enough"):
        run.stages()
    assert client.rows == {}


def test_check_knows_registered_parts(owner: tuple[Path, Body], home: Path) -> None:
    with served_run(owner, home) as (run, client):
        fleet = _Fleet(run.documents.settings, run.expert, client, Finishing())
        fleet.body()
        assert fleet.expert().startswith("only the expert's parts leave")
        run.stages()
        assert fleet.expert() == "its parts are already registered"


def test_check_of_an_adapter_on_the_seed_s_mlps_names_the_adapter_s_bytes(
    owner: tuple[Path, Body], home: Path, tmp_path: Path
) -> None:
    lora = adapter(tmp_path / "lora", owner[0] / "seed", 3, "up_proj", "down_proj")
    with served_run(owner, home) as (run, client):
        fleet = _Fleet(run.documents.settings, DenseExpert("law", lora), client, Finishing(), has_own_head=False)
        fleet.body()
        size = decimal((lora / "adapter_model.safetensors").stat().st_size)
        assert fleet.expert() == f"only the adapter leaves, {size}; the coordinator merges it with the seed"
