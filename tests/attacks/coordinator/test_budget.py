"""A hostile coordinator asks about one text again and again, by body after body or by a harmful one."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from moerge.errors import IncompatibleExpertError
from moerge.models.families.family import EMBEDDING
from moerge.statistics.passes import Pass
from moerge.statistics.windows import Done, Window
from moerge.trunk.merge import DENSE_BODY_FILE
from moerge_proto.contributions import Contribution
from moerge_proto.progress import Obstacle
from moerge_proto.statistics_file import StatisticsFile
from moerge_workers.contributing.body_check import sampled_grams
from moerge_workers.leaving import budget
from support.models import texts
from support.stages import NOW, MemoryClient, body, context_of, contribute, own_body

POLICY = {"min_documents": 5, "min_tokens": 1}
BODIES = [body(str(number) * 64) for number in range(1, 6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An owner's expert, and the body that is its own."""
    return own_body(tmp_path_factory.mktemp("owner"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    texts(tmp_path / "texts.jsonl", 1, 40)
    return tmp_path


@pytest.fixture
def client(folder: Path) -> MemoryClient:
    return MemoryClient(folder / DENSE_BODY_FILE)


GAIN = "model.layers.2.post_attention_layernorm.weight"


def crafted(folder: Path, path: Path, letters: float = 1, gain: float = 1) -> Path:
    """The owner's body with what letters are known by, or a norm's gain, multiplied: every tensor is finite."""
    tensors = load_file(folder / DENSE_BODY_FILE)
    tensors[EMBEDDING][:, 0] *= letters
    tensors[GAIN] *= gain
    save_file(tensors, path)
    return path


def never(work: Pass, given: Iterable[Window]) -> Iterator[Done]:
    raise AssertionError("it computed")


@pytest.mark.parametrize("fit", [False, True])
def test_harmful_body_that_passes_as_near_causes_no_work(
    folder: Path, home: Path, client: MemoryClient, fit: bool
) -> None:
    client.weights = crafted(folder, home / "crafted.safetensors", letters=-1)
    policy = {**POLICY, "max_stray": 1000}
    for _ in range(2):
        with context_of(folder, home, client, fit=fit, policy=policy) as context:
            with pytest.raises(
                IncompatibleExpertError, match=r"perplexity .* with its own MLPs and head, .* by the expert"
            ) as caught:
                contribute(replace(context, compute=never), body())
            assert context.outbox.history.sendings() == []
        (home / "texts.jsonl").write_text('{"text": "the scores are kept"}\n')
    assert "max_perplexity_ratio" in caught.value.todo
    assert client.uploaded == []
    assert not list(home.glob("bodies/*/fitted-*"))


def test_a_loss_that_is_not_finite_is_refused(folder: Path, home: Path, client: MemoryClient) -> None:
    client.weights = crafted(folder, home / "crafted.safetensors", gain=2e38)
    policy = {**POLICY, "max_stray": 1e39, "max_perplexity_ratio": 1e300}
    with context_of(folder, home, client, policy=policy) as context, pytest.raises(IncompatibleExpertError):
        contribute(replace(context, compute=never), body())


def contributed(folder: Path, home: Path, client: MemoryClient, number: int, day: int = 0) -> list[Contribution]:
    """One run of the worker on a day, under a body."""
    client.current = BODIES[number]
    policy = {**POLICY, "bodies_per_month": 3}
    with context_of(folder, home, client, lambda: NOW + timedelta(days=day), policy=policy) as context:
        return contribute(context, BODIES[number])


def test_fourth_body_in_thirty_days_requires_owner_approval(folder: Path, home: Path, client: MemoryClient) -> None:
    for number in range(3):
        assert contributed(folder, home, client, number, number)
    client.rows = {
        digest: row.model_copy(update={"active": False, "withdrawn": NOW}) for digest, row in client.rows.items()
    }
    for day in (3, 29):
        assert contributed(folder, home, client, 3, day) == []
        with context_of(folder, home, client) as context:
            [asked] = context.outbox.history.asked()
            assert (asked.kind, asked.body) == ("body-use", BODIES[3].digest)
    assert len(client.uploaded) == 3
    with context_of(folder, home, client) as context:
        context.outbox.history.note(asked, "refused")
        assert contribute(context, BODIES[3]) == []
        assert context.events.status.state.obstacle is Obstacle.OWNER_REFUSED
        context.outbox.history.note(asked, "approved")
    assert contributed(folder, home, client, 3, 29)
    assert contributed(folder, home, client, 4, 29) == []
    assert contributed(folder, home, client, 4, 30) == []
    assert contributed(folder, home, client, 4, 31)  # two are older than 30 days by now


def test_more_data_under_a_counted_body_needs_no_approval(
    folder: Path, home: Path, client: MemoryClient, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        assert contributed(folder, home, client, number)
    client.current = BODIES[3]
    with context_of(folder, home, client, dry_run=True, policy=POLICY) as context:
        assert contribute(context, BODIES[3]) == []
    assert "a run would first ask you about: law: sums under body 4444" in capsys.readouterr().err
    texts(home / "more.jsonl", 2, 40)
    (home / "texts.jsonl").write_text((home / "texts.jsonl").read_text() + (home / "more.jsonl").read_text())
    assert len(contributed(folder, home, client, 0)) == 2


def refused(folder: Path, home: Path, client: MemoryClient, number: int, policy: dict[str, Any]) -> Obstacle | None:
    """The word that a coordinator hears about a body that the worker refuses, or doesn't compare."""
    client.current = BODIES[number]
    with context_of(folder, home, client, policy={**POLICY, **policy}) as context:
        with suppress(IncompatibleExpertError):
            assert contribute(replace(context, compute=never), BODIES[number]) == []
        return context.events.status.state.obstacle


@pytest.mark.parametrize("mode", ["auto", "ask"])
def test_refusals_are_no_oracle(folder: Path, home: Path, client: MemoryClient, mode: str) -> None:
    """A refusal is one bit about the owner's text: all have one word, and three bodies in thirty days are compared."""
    near = crafted(folder, home / "harmful.safetensors", letters=-1)
    far = crafted(folder, home / "far.safetensors", gain=100)
    words = []
    for number, (weights, most) in enumerate([(near, 1000), (far, 0.6), (near, 1000)]):
        client.weights = weights
        words.append(refused(folder, home, client, number, {"mode": mode, "max_stray": most}))
    client.weights = far
    words.append(refused(folder, home, client, 3, {"mode": mode}))
    assert words == [*[Obstacle.BODY_REFUSED] * 3, Obstacle.ASKS_OWNER]
    with context_of(folder, home, client) as context:
        [asked] = context.outbox.history.asked()
        assert (asked.kind, asked.body) == ("body-use", BODIES[3].digest)
        assert budget.bodies(context.outbox.history) == [item.digest for item in BODIES[:3]]
        context.outbox.history.note(asked, "approved")
    assert refused(folder, home, client, 3, {"mode": mode}) is Obstacle.BODY_REFUSED


def test_comparisons_read_no_counts_of_rare_tokens(folder: Path, home: Path, client: MemoryClient) -> None:
    with (home / "texts.jsonl").open("a") as file:
        file.write('{"text": "(?)"}\n')
    with context_of(folder, home, client) as context, StatisticsFile(sampled_grams(context)) as file:
        counts = file.array("token_counts")
        assert counts.max() >= context.settings.rare_below
        assert not ((counts > 0) & (counts < context.settings.rare_below)).any()


def test_owner_in_ask_mode_is_asked_once_and_warned(
    folder: Path, home: Path, client: MemoryClient, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        assert contributed(folder, home, client, number)
    assert "What a further body could reveal" not in capsys.readouterr().err
    with context_of(folder, home, client, policy={**POLICY, "mode": "ask"}) as context:
        assert contribute(context, BODIES[3]) == []
        [asked] = context.outbox.history.asked()
        assert asked.kind == "body-use"
        assert context.events.status.state.obstacle is Obstacle.ASKS_OWNER
        assert "What a further body could reveal" in capsys.readouterr().err
        context.outbox.history.note(asked, "approved")
        assert contribute(context, BODIES[3]) == []
        assert [item.kind for item in context.outbox.history.asked()] == ["router"]
    assert "What a further body could reveal" not in capsys.readouterr().err


def test_another_file_under_a_body_s_name_is_refused(folder: Path, home: Path, client: MemoryClient) -> None:
    assert contributed(folder, home, client, 0)
    client.weights = crafted(folder, home / "crafted.safetensors", gain=1.01)
    texts(home / "texts.jsonl", 2, 80)
    with pytest.raises(IncompatibleExpertError, match="served another file under the name of body"):
        contributed(folder, home, client, 0)
    assert len(client.uploaded) == 1
