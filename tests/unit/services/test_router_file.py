"""The routers' file is a function of its lineage: contributions, trunk, lambda, temperature, order of the domains."""

import io
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from moerge.architectures.families import FAMILIES
from moerge.checkpoint.reader import Checkpoint
from moerge.publish.version import expert_file, router_file, trunk_file
from moerge.routers.ridge import solve
from moerge.routers.sums import ridge_system
from moerge_proto.statistics_file import StatisticsFile
from moerge_proto.versions import SolveOptions
from support.models import expert
from support.statistics import LAYERS, honest_sums, manifest_of, written

LLAMA = FAMILIES["llama"]
HIDDEN = 6
GAINS = [LLAMA.gain.format(layer=layer) for layer in range(LAYERS)]


def trunk(path: Path, dtype: torch.dtype = torch.float32) -> Checkpoint:
    tensors = {name: torch.linspace(0.5, 2, HIDDEN).to(dtype) for name in GAINS}
    save_file({**tensors, "model.embed_tokens.weight": torch.zeros(3, HIDDEN, dtype=dtype)}, path)
    return Checkpoint(path)


def opened(folder: Path, stack: ExitStack) -> list[StatisticsFile]:
    files = []
    for seed, domain in enumerate(("law", "art")):
        sums = honest_sums(HIDDEN, 40, 1, HIDDEN, seed)
        path = written(folder / domain, manifest_of(sums, 1, domain=domain), sums)
        files.append(stack.enter_context(StatisticsFile(path)))
    return files


def content(
    folder: Path, options: SolveOptions, domains: Sequence[str] = ("law", "art"), *, turned: bool = False
) -> bytes:
    out = io.BytesIO()
    with ExitStack() as stack:
        files = opened(folder, stack)
        plan = router_file(files[::-1] if turned else files, domains, trunk(folder / "trunk"), LLAMA, options, "0" * 64)
        plan.write(out)
    return out.getvalue()


def router(data: bytes, layer: int = 0) -> Tensor:
    return load(data)[LLAMA.router.format(layer=layer)]


def test_law_3_the_order_of_arrival_changes_no_byte(tmp_path: Path) -> None:
    options = SolveOptions()
    assert content(tmp_path, options) == content(tmp_path, options, turned=True)
    assert len(load(content(tmp_path, options))) == LAYERS


def test_rows_stand_in_the_order_of_the_domains(tmp_path: Path) -> None:
    one, other = (router(content(tmp_path, SolveOptions(), domains)) for domains in (("law", "art"), ("art", "law")))
    assert torch.equal(one, other.flip(0))
    assert not torch.equal(one, other)


def test_lambda_is_what_the_system_is_solved_with(tmp_path: Path) -> None:
    found = router(content(tmp_path, SolveOptions(ridge_lambda=50.0)))
    with ExitStack() as stack:
        gain = load_file(tmp_path / "trunk")[GAINS[0]]
        gram, cross = ridge_system(opened(tmp_path, stack), ["law", "art"], 0, gain)
    torch.testing.assert_close(found, solve(gram, cross, 50.0).T.float())
    assert not torch.allclose(found, solve(gram, cross, 0.01).T.float(), atol=1e-3)


def test_the_temperature_divides_the_scores(tmp_path: Path) -> None:
    plain, warm = (router(content(tmp_path, SolveOptions(temperature=t))) for t in (1.0, 4.0))
    assert torch.equal(warm * 4, plain)


def test_routers_have_the_trunk_s_dtype_and_say_when_each_layer_is_solved(tmp_path: Path) -> None:
    solved: list[int] = []
    out = io.BytesIO()
    with ExitStack() as stack:
        files, brain = opened(tmp_path, stack), trunk(tmp_path / "trunk", torch.bfloat16)
        plan = router_file(files, ["law", "art"], brain, LLAMA, SolveOptions(), "0" * 64, solved.append)
        plan.write(out)
    assert {tensor.dtype for tensor in load(out.getvalue()).values()} == {torch.bfloat16}
    assert solved == list(range(LAYERS))
    assert sum(plan.tensors.values()) == LAYERS * 2 * HIDDEN * 2


@pytest.mark.parametrize("change", ["lineage", "trunk", "expert", "slot"])
def test_law_7_a_file_s_key_changes_with_what_it_is_made_of(tmp_path: Path, change: str) -> None:
    """An equal key means: the file is there already and isn't written again. So what differs must change the key."""
    checkpoint = Checkpoint(expert(tmp_path / "expert", seed=1))
    gains = trunk(tmp_path / "trunk")

    def keys(lineage: str = "0", trunk_digest: str = "1", expert_digest: str = "2", slot: int = 0) -> list[str]:
        with ExitStack() as stack:
            files = opened(tmp_path, stack)
            routers = router_file(files, ["law", "art"], gains, LLAMA, SolveOptions(), lineage)
        made = [routers, trunk_file(gains, trunk_digest), expert_file(checkpoint, LLAMA, 3, slot, expert_digest)]
        return [plan.key for plan in made]

    other = {
        "lineage": keys(lineage="9"),
        "trunk": keys(trunk_digest="9"),
        "expert": keys(expert_digest="9"),
        "slot": keys(slot=1),
    }[change]
    place = {"lineage": 0, "trunk": 1, "expert": 2, "slot": 2}[change]
    same = keys()
    assert [one == two for one, two in zip(same, other, strict=True)] == [place != i for i in range(3)]
    assert len({*same}) == 3
