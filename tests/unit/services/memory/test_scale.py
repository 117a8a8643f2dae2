"""The table of docs/scale.md: memory by the library's formulas, and files by those of real ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from moerge.fits.fitting import fit as fit_mlps
from moerge.fits.parts import write_parts
from moerge.memory.shapes import Shape
from moerge.merging.local_lineages import LocalBody, local_body, local_version
from moerge.models.batches import batches
from moerge.models.expert_folder import DenseExpert
from moerge.models.reader import Checkpoint
from moerge.models.tokens import all_counted
from moerge.statistics.contribution import body_contribution, head_contribution, router_contribution
from moerge.versions.folder import write_folder
from moerge.versions.version_plan import plan_version, solve_lineage
from moerge_proto.ranges import LocalFile
from moerge_proto.statistics_file import gram_length
from moerge_proto.version_files import ROUTER_FILE, expert_name
from support import sizes as files
from support.models import expert
from support.versions import ROWS, contributed_rows

DOMAINS = 3
PAGE = Path(__file__).parents[4] / "docs" / "scale.md"


def test_the_page_has_the_table() -> None:
    """If it differs, copy the lines that the test prints."""
    made = files.table()
    print("\n".join(made))
    page = PAGE.read_text(encoding="utf-8").splitlines()
    start = page.index(made[0])
    assert page[start : start + len(made) + 1] == [*made, ""]


class Counted(LocalFile):
    """A file that counts the bytes read behind its header, and keeps the most that were read at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.count = self.most = 0
        self._header = header_bytes(path)

    def read(self, start: int, out: memoryview) -> int:
        if start >= self._header:
            self.count += len(out)
            self.most = max(self.most, len(out))
        return super().read(start, out)


def header_bytes(path: Path) -> int:
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def body_bytes(path: Path) -> int:
    """Bytes of a safetensors file's tensors."""
    return path.stat().st_size - header_bytes(path)


@dataclass(frozen=True)
class Made:
    """A federation's files, made by the library."""

    shape: Shape
    experts: list[DenseExpert]
    body: LocalBody
    body_sums: list[Path]
    head_sums: list[Path]
    router_sums: list[Path]
    version: Path

    def counted(self) -> list[Counted]:
        """The experts' weights."""
        return [Counted(item.folder / "model.safetensors") for item in self.experts]


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder, tied = tmp_path_factory.mktemp("sizes"), bool(request.param)
    own = [
        DenseExpert(f"d{slot}", expert(folder / f"expert-{slot}", slot + 1, tie_word_embeddings=tied))
        for slot in range(DOMAINS)
    ]
    shape = Shape.of(own[0].config, torch.float32)
    rows = [all_counted(8 * ROWS) for _ in own]
    body_sums = [
        body_contribution(item, text, folder / f"body-{item.domain}") for item, text in zip(own, rows, strict=True)
    ]
    head_sums = [
        head_contribution(item, text, folder / f"head-{item.domain}") for item, text in zip(own, rows, strict=True)
    ]
    body = local_body(own, folder / "body", "regmean", body_sums)
    router_sums = [
        router_contribution(item, body, all_counted(contributed_rows(slot)), folder / f"router-{item.domain}")
        for slot, item in enumerate(own)
    ]
    inputs = local_version(own, body, router_sums, head_contributions=head_sums)
    version = write_folder(plan_version(*inputs).files, folder / "version")
    return Made(shape, own, body, body_sums, head_sums, router_sums, version)


def test_files_have_the_bytes_of_their_formulas(made: Made) -> None:
    shape = made.shape
    for item in made.experts:
        assert body_bytes(item.folder / "model.safetensors") == files.expert_bytes(shape)
    assert body_bytes(made.body.path) == files.body_bytes(shape)
    assert {*map(body_bytes, made.body_sums)} == {shape.contribution(body=True)}
    assert {*map(body_bytes, made.head_sums)} == {files.head_contribution_bytes(shape)}
    assert {*map(body_bytes, made.router_sums)} == {shape.contribution(body=False)}
    assert body_bytes(made.version / ROUTER_FILE) == files.router_bytes(shape, DOMAINS)
    assert {body_bytes(made.version / expert_name(slot)) for slot in range(DOMAINS)} == {files.mlp_bytes(shape)}
    assert sum(map(body_bytes, made.version.glob("*.safetensors"))) == files.version_bytes(shape, DOMAINS)


@pytest.mark.parametrize("fit", [False, True], ids=["own", "fitted"])
def test_parts_under_a_seed_s_body_have_the_bytes_of_their_formula(made: Made, tmp_path: Path, fit: bool) -> None:
    own, shape = made.experts[0], made.shape
    body = local_body([], tmp_path / "body", "seed", base=own)
    parts = tmp_path / "parts"
    if fit:
        fit_mlps(own, body, list(batches(all_counted(ROWS), 512)), parts)
    else:
        write_parts(own, parts)
    assert body_bytes(body.path) == files.body_bytes(shape)
    assert body_bytes(parts / "model.safetensors") == files.part_bytes(shape)


def closed(counted: Sequence[Counted]) -> int:
    """The bytes read from files, which it closes."""
    for item in counted:
        item.close()
    return sum(item.count for item in counted)


def test_solve_reads_each_contribution_once_one_gram_at_a_time(made: Made) -> None:
    sums = [Counted(path) for path in made.router_sums]
    lineage, inputs = local_version(made.experts, made.body, made.router_sums, head="average")
    solve_lineage(lineage, replace(inputs, statistics=lambda: sums))
    assert closed(sums) == DOMAINS * made.shape.contribution(body=False)
    assert {item.most for item in sums} == {8 * gram_length(made.shape.hidden)}


def test_writing_a_version_reads_each_expert_s_mlps_once(made: Made) -> None:
    weights = made.counted()
    lineage, inputs = local_version(made.experts, made.body, made.router_sums, head="average")
    slots = [
        replace(slot, weights=Checkpoint(slot.side_files.folder, {"model.safetensors": file}))
        for slot, file in zip(inputs.slots, weights, strict=True)
    ]
    plan = plan_version(lineage, replace(inputs, slots=slots))
    with Path("/dev/null").open("wb") as nowhere:
        for file in plan.shared:
            file.write(nowhere)
    assert closed(weights) == DOMAINS * files.mlp_bytes(made.shape)
