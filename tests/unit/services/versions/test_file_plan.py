"""The routers' file is a function of its lineage: contributions, body, lambda, temperature, order of the domains."""

import io
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor

from moerge.models.families.registry import FAMILIES
from moerge.models.reader import Checkpoint
from moerge.routers.solve import solve_layers
from moerge.routers.system import ridge_system
from moerge.versions.file_plan import FilePlan, mlp_files, router_file
from moerge_proto.recipes import SolveOptions
from moerge_proto.statistics_file import StatisticsFile
from moerge_proto.version_files import FUSED_FILE
from support.models import expert
from support.statistics import LAYERS, honest_sums, manifest_of, ridge_router, written

LLAMA = FAMILIES["llama"]
HIDDEN = 6
GAIN = torch.linspace(0.5, 2, HIDDEN)
DOMAINS = ("law", "art")


def opened(folder: Path, stack: ExitStack) -> list[StatisticsFile]:
    files = []
    for seed, domain in enumerate(DOMAINS):
        sums = honest_sums(HIDDEN, 40, 1, HIDDEN, seed)
        path = written(folder / domain, manifest_of(sums, 1, domain=domain), sums)
        files.append(stack.enter_context(StatisticsFile(path)))
    return files


def planned(
    files: Sequence[StatisticsFile],
    options: SolveOptions,
    domains: Sequence[str] = DOMAINS,
    dtype: torch.dtype = torch.float32,
    solved: Callable[[int], None] = lambda layer: None,
) -> FilePlan:
    def routers() -> list[Tensor]:
        return solve_layers(files, domains, GAIN.expand(LAYERS, HIDDEN), options, solved)[0]

    return router_file(
        cache(routers), torch.ones(LAYERS, HIDDEN), range(LAYERS), len(domains), LLAMA.host, dtype, "0" * 64
    )


def content(folder: Path, options: SolveOptions, domains: Sequence[str] = DOMAINS, *, turned: bool = False) -> bytes:
    out = io.BytesIO()
    with ExitStack() as stack:
        files = opened(folder, stack)
        planned(files[::-1] if turned else files, options, domains).write(out)
    return out.getvalue()


def written_bytes(plan: FilePlan) -> bytes:
    out = io.BytesIO()
    plan.write(out)
    return out.getvalue()


def router(data: bytes, layer: int = 0) -> Tensor:
    return load(data)[LLAMA.host.router.format(layer=layer)]


def test_fused_experts_of_an_earlier_version_are_those_of_their_checkpoints(tmp_path: Path) -> None:
    granite, names = FAMILIES["granite"], ("one", "two", "three")
    experts = [(Checkpoint(expert(tmp_path / name, seed, "granite")), name) for seed, name in enumerate(names)]
    [two], [three] = mlp_files(experts[:2], granite, range(3)), mlp_files(experts, granite, range(3))
    with (tmp_path / FUSED_FILE).open("wb") as out:
        two.write(out)
    earlier = Checkpoint(tmp_path / FUSED_FILE)
    [grown] = mlp_files([(earlier, "one"), (earlier, "two"), experts[2]], granite, range(3))
    whole = load(written_bytes(three))
    assert written_bytes(grown) == written_bytes(three)
    assert (grown.key == three.key, grown.parameters) == (True, 3 * 3 * 3 * 48 * 32)
    own, layer = experts[1][0], "model.layers.2."
    gate, up = (own.tensor(f"{layer}mlp.{name}_proj.weight") for name in ("gate", "up"))
    assert torch.equal(whole[f"{layer}block_sparse_moe.input_linear.weight"][1], torch.cat([gate, up]))


def test_law_3_the_order_of_arrival_changes_no_byte(tmp_path: Path) -> None:
    options = SolveOptions()
    assert content(tmp_path, options) == content(tmp_path, options, turned=True)
    assert len(load(content(tmp_path, options))) == LAYERS


def test_rows_stand_in_the_order_of_the_domains(tmp_path: Path) -> None:
    one, other = (router(content(tmp_path, SolveOptions(), domains)) for domains in (("law", "art"), ("art", "law")))
    assert torch.equal(one, other.flip(0))
    assert not torch.equal(one, other)


def test_lambda_is_what_the_system_is_solved_with(tmp_path: Path) -> None:
    result = router(content(tmp_path, SolveOptions(ridge_lambda=50.0)))
    with ExitStack() as stack:
        gram, cross = ridge_system(opened(tmp_path, stack), DOMAINS, 0, GAIN)
    torch.testing.assert_close(result, ridge_router(gram.clone(), cross, 50.0).T.float())
    assert not torch.allclose(result, ridge_router(gram.clone(), cross, 0.01).T.float(), atol=1e-3)
    relative = router(content(tmp_path, SolveOptions(ridge_lambda=0.5, lambda_scale="relative")))
    torch.testing.assert_close(
        relative, ridge_router(gram.clone(), cross, 0.5 * float(gram.diagonal().mean())).T.float()
    )


def test_the_temperature_divides_the_scores(tmp_path: Path) -> None:
    plain, warm = (router(content(tmp_path, SolveOptions(temperature=t))) for t in (1.0, 4.0))
    assert torch.equal(warm * 4, plain)


def test_routers_have_requested_dtype_and_report_each_layer(tmp_path: Path) -> None:
    solved: list[int] = []
    out = io.BytesIO()
    with ExitStack() as stack:
        plan = planned(opened(tmp_path, stack), SolveOptions(), dtype=torch.bfloat16, solved=solved.append)
        plan.write(out)
    assert {tensor.dtype for tensor in load(out.getvalue()).values()} == {torch.bfloat16}
    assert solved == list(range(LAYERS))
    assert sum(plan.tensors.values()) == LAYERS * 2 * HIDDEN * 2
