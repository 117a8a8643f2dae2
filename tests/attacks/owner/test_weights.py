"""An owner whose weights, or whose text for bodies, would take over everyone's embedding, head and attention."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moerge.documents.shards import enough
from moerge.merging.local import local_body
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import EMBEDDING
from moerge.models.tokens import all_counted
from moerge.statistics.contribution import body_contribution
from moerge_proto.digests import sha256_hex
from moerge_proto.experts import ExpertState
from support.federation import Federation, eventually, federation_of
from support.models import VOCAB, expert
from support.versions import contributed_rows

QUERY, DOWN = "model.layers.1.self_attn.q_proj.weight", "model.layers.2.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("owner"), "law", "art") as made:
        yield made


ONE_TOKEN = [[5]]
EVENLY_SPREAD = torch.arange(VOCAB).repeat(7).reshape(-1, 30).tolist()  # 64 H tokens, each as often as any other


def shares(folder: Path, text: Sequence[list[int]], own_text: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """[V] the attacker's share of each row of the merged embedding, and how often two others use the row."""
    experts = [DenseExpert(name, expert(folder / name, seed)) for seed, name in enumerate(("attacker", "law", "art"))]
    rows = [text, own_text, own_text]
    assert sum(map(len, own_text)) >= enough(32)
    sent = [body_contribution(item, all_counted(rows[slot]), folder / f"{slot}") for slot, item in enumerate(experts)]
    merged = load_file(local_body(experts, folder / "body", "regmean", sent).path)[EMBEDDING]
    own = torch.stack([load_file(item.folder / "model.safetensors")[EMBEDDING] for item in experts], dim=-1)
    result = torch.linalg.lstsq(own.double(), merged.double()[:, :, None]).solution[:, 0, 0]
    return result, torch.bincount(torch.tensor(own_text).flatten(), minlength=VOCAB) / sum(map(len, own_text))


def test_one_token_of_text_takes_no_rows_of_the_others(tmp_path: Path) -> None:
    """It had nearly all of every row."""
    result, use = shares(tmp_path, ONE_TOKEN, contributed_rows(0) * 7)
    assert float(result @ use.double()) < 1 / 3
    assert float(result.max()) < 0.7, "of the row of its token, too"


def test_evenly_spread_text_does_not_dominate_rows_of_others(tmp_path: Path) -> None:
    """Of rows that others use seldom it had nearly all."""
    often, seldom = [[token] * 40 for token in range(60)], torch.arange(60, VOCAB).reshape(-1, 40).tolist()
    result, use = shares(tmp_path, EVENLY_SPREAD, [*often, *seldom])
    assert float(result @ use.double()) < 1 / 3 + 0.01
    assert float(result.max()) < 0.7


def noised(tensor: Tensor) -> Tensor:
    return tensor + 1.5 * tensor.std() * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "change"),
    [(QUERY, lambda tensor: 10 * tensor), (EMBEDDING, noised), (DOWN, lambda tensor: -2 * tensor)],
    ids=["scaled attention", "noised embedding", "one far tensor"],
)
def test_outlier_weights_are_refused_naming_tensor_and_owner(
    federation: Federation, tmp_path: Path, name: str, change: Callable[[Tensor], Tensor]
) -> None:
    folder = expert(tmp_path / "expert", seed=7)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: change(tensors[name])}, folder / "model.safetensors", {"format": "pt"})
    made = federation.join(f"odd-{sha256_hex(name.encode())[:8]}", folder).register()
    assert made.state is ExpertState.REFUSED
    assert made.problem is not None
    assert made.problem.field == name
    who = f"the expert of {made.domain!r} (owner {made.owner!r}) differs from the expert of "
    assert made.problem.detail.startswith((f"{who}'law' (owner 'law-owner')", f"{who}'art' (owner 'art-owner')"))
    assert "expert_max_distance" in (made.problem.todo or "")


def test_hostile_first_expert_is_named_and_can_be_withdrawn(tmp_path: Path) -> None:
    with federation_of(tmp_path) as made:
        folder = expert(tmp_path / "hostile", seed=1)
        tensors = load_file(folder / "model.safetensors")
        save_file({**tensors, QUERY: 10 * tensors[QUERY]}, folder / "model.safetensors", {"format": "pt"})
        hostile = made.join("hostile", folder).register()
        law = made.join("law", expert(tmp_path / "law", seed=2))
        result = law.register()
        assert (hostile.state, result.state) == (ExpertState.READY, ExpertState.REFUSED)
        assert result.problem is not None
        assert (
            "(owner 'law-owner') differs from the expert of 'hostile' (owner 'hostile-owner')" in result.problem.detail
        )
        made.operator.withdraw_expert(hostile.digest)
        eventually(lambda: law.register().state is ExpertState.READY)


def test_an_operator_may_let_a_far_expert_in(tmp_path: Path) -> None:
    with federation_of(tmp_path, "law", settings="expert_max_distance = 20\n") as made:
        folder = expert(tmp_path / "far", seed=2)
        tensors = load_file(folder / "model.safetensors")
        save_file({**tensors, QUERY: 10 * tensors[QUERY]}, folder / "model.safetensors", {"format": "pt"})
        assert made.join("far", folder).register().state is ExpertState.READY
