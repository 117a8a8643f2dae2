"""The check of a body by its owners: what is near the expert passes, what is not is refused by tensor."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from moerge.errors import IncompatibleExpertError
from moerge.merging.local import local_body
from moerge.models.dense_files import DenseBody
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import EMBEDDING
from moerge.models.families.registry import FAMILIES
from moerge.models.tokens import Tokens
from moerge.statistics.contribution import body_contribution
from moerge.trunk.methods.registry import METHODS
from moerge.trunk.stray import Stray, require_near
from moerge_proto.bodies import BodyMethod, BodyOptions
from moerge_workers.policy import Policy
from support.models import HEAD_NAMES, expert, on_body
from support.versions import body_file, contributed_rows

LIMIT = Policy().max_stray
NORM, QUERY, VALUE, OUTPUT = (
    f"model.layers.1.{name}.weight"
    for name in ("input_layernorm", "self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj")
)
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Own:
    """An expert and its grams."""

    expert: DenseExpert
    grams: Path

    def stray(self, body: Path, limit: float = LIMIT) -> Stray:
        return require_near(self.expert, DenseBody(body, self.expert.config), limit, self.grams)


@cache
def own(seed: int, family: str = "llama", apart: float = 0.005, vocabulary: int = 300) -> Own:
    home = Path(mkdtemp(prefix="stray-"))
    # a bias of Nemotron-H is 0 in an untrained seed, so that all of it strays
    more = {"use_conv_bias": False} if family == "nemotron_h" else {}
    folder = expert(home / "expert", seed, family, apart=apart, vocab_size=vocabulary, **more)
    model = DenseExpert(f"d{seed}", folder)
    return Own(model, body_contribution(model, [Tokens(row) for row in contributed_rows(seed)], home / "grams"))


def changed(folder: Path, **changes: Tensor | None) -> Path:
    """A body like the first expert's own, with other tensors under these names, or none."""
    own_tensors = load_file(own(1).expert.folder / "model.safetensors")
    tensors = {
        name: changes.get(name, tensor)
        for name, tensor in (own_tensors | changes).items()
        if ".mlp." not in name and name not in HEAD_NAMES
    }
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / "body")
    return folder / "body"


def tensor(name: str) -> Tensor:
    return load_file(own(1).expert.folder / "model.safetensors")[name]


def zeroed(tensor: Tensor, rows: slice) -> Tensor:
    return tensor.index_fill(0, torch.arange(len(tensor))[rows], 0.0)


def test_an_expert_s_own_body_has_no_stray(tmp_path: Path) -> None:
    stray = own(1).stray(changed(tmp_path), 1e-6)
    assert (stray.tensor.value, stray.size.value, stray.row.value) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "change", "measures"),
    [
        (NORM, lambda gains: gains * 1.25, {"tensor": 0.25, "size": 0.25}),
        (NORM, lambda gains: gains / 1.25, {"tensor": 0.25, "size": 0.25}),
        (OUTPUT, lambda weights: -weights, {"tensor": 2.0, "size": 0.0, "row": 2.0}),
        (VALUE, lambda weights: weights * (1 + torch.eye(16, 1)), {"row": 1.0}),
        (EMBEDDING, lambda rows: rows * (1 + 2 * torch.eye(300, 1)), {"row": 2.0}),
        (EMBEDDING, lambda rows: rows * (1 + torch.eye(1, 32)), {"row": 1.0}),
    ],
)
def test_the_report_names_the_furthest_tensor_by_each_measure(
    tmp_path: Path, name: str, change: Change, measures: dict[str, float]
) -> None:
    stray = own(1).stray(changed(tmp_path, **{name: change(tensor(name))}), 100.0)
    for measure, value in measures.items():
        furthest = getattr(stray, measure)
        assert furthest.value == pytest.approx(value, abs=1e-3)
        assert furthest.name in (name, "")
    assert f"by {stray.tensor.value:.3f} ({stray.tensor.name})" in str(stray)


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        (NORM, lambda gains: gains * 1.6, "strays by 0.6"),
        (NORM, lambda gains: gains * 1.3, "strays in size by 0.3"),
        (NORM, lambda gains: gains * torch.nan, "strays by nan"),
        (NORM, lambda gains: gains[:-1].clone(), "another shape"),
        (NORM, lambda gains: None, "lacks it"),
        (NORM, lambda gains: gains * 0, "strays by"),
        (OUTPUT, lambda weights: weights * 0, "strays by"),
        (OUTPUT, lambda weights: weights * 0.05, "strays by 19"),
        (QUERY, lambda weights: weights * 0, "strays by"),
        (OUTPUT, lambda weights: zeroed(weights, slice(3, 4)), "strays in a single row"),
        (VALUE, lambda weights: zeroed(weights, slice(3, 4)), "strays in a single row"),
        (EMBEDDING, lambda rows: rows.index_fill(1, torch.tensor([3]), 0.0), "strays in a single row by"),
        (EMBEDDING, lambda rows: rows * (1 + 2 * torch.eye(300, 1)), "strays in a single row"),
        (EMBEDDING, lambda rows: rows[:-1].clone(), "another shape"),
    ],
)
def test_a_body_that_is_not_near_is_refused_by_tensor(tmp_path: Path, name: str, change: Change, what: str) -> None:
    with pytest.raises(IncompatibleExpertError, match=what) as caught:
        own(1).stray(changed(tmp_path, **{name: change(tensor(name))}))
    assert caught.value.where == name


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.q_proj.bias", "model.layers.3.input_layernorm.weight"])
def test_a_tensor_that_the_expert_lacks_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(IncompatibleExpertError, match="your expert has no such tensor") as caught:
        own(1).stray(changed(tmp_path, **{name: torch.zeros(32)}))
    assert caught.value.where == name


def test_the_embedding_s_longer_vocabulary_is_of_others(tmp_path: Path) -> None:
    """Rows that no token of the expert names are neither compared nor read."""
    short, long = own(1), own(2, vocabulary=304)
    body = body_file([short.expert.folder, long.expert.folder], tmp_path)
    short.stray(body, 10.0)  # random models of other shapes have nothing in common
    long.stray(body, 10.0)
    with pytest.raises(IncompatibleExpertError, match="another shape") as caught:
        long.stray(short.expert.folder / "model.safetensors")
    assert "merge a body with your expert" in caught.value.todo


def test_only_answers_on_the_owner_s_own_text_count(tmp_path: Path) -> None:
    """A change in a direction that no text has counts for nothing; one along the text counts."""
    grams = body_contribution(own(1).expert, [Tokens([5])], tmp_path / "grams")
    [embedded] = tensor(EMBEDDING)[[5]]
    direction = embedded * tensor(NORM.replace("1", "0"))
    direction = direction / direction.norm()
    across = torch.randn(32, generator=torch.Generator().manual_seed(0))
    across -= (across @ direction) * direction
    query, name = tensor(QUERY.replace("1", "0")), QUERY.replace("1", "0")
    for way, low, high in ((across / across.norm(), 0.0, 0.01), (direction, 2.0, 100.0)):
        body = changed(tmp_path, **{name: query + 3 * query.norm() * way / 32**0.5})
        stray = require_near(*on_body(own(1).expert.folder, body), 1000.0, grams)
        assert low <= stray.tensor.value <= high


HONEST = st.tuples(
    st.sampled_from(sorted(FAMILIES)),
    st.sampled_from(sorted(name for name, method in METHODS.items() if not method.is_seed)),
    st.permutations([1, 2, 3, 4]),
    st.integers(2, 3),
    st.sampled_from([0.001, 0.004]),
)


@settings(max_examples=20, deadline=None)
@given(HONEST)
def test_honest_bodies_pass(drawn: tuple[str, BodyMethod, list[int], int, float]) -> None:
    """By every method and of every family, for experts in the body and for others."""
    family, name, order, size, apart = drawn
    if family == "olmo2":
        apart = min(apart, 0.003)  # at 0.004, one of its small attentions strays by 0.62
    method, owners = METHODS[name], [own(seed, family, apart) for seed in order]
    body = local_body(
        [owner.expert for owner in owners[:size]],
        Path(mkdtemp(prefix="stray-")),
        name,
        [owner.grams for owner in owners[:size]] if method.solved else [],
        BodyOptions(weights={"d1": 3.0} if "weights" in method.takes else {}),
        base=owners[-1].expert if "base" in method.takes else None,
    )
    for owner in owners:
        owner.stray(body.path)
