"""`moerge coordinator size`, and the table of docs/scale.md that it makes."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moerge.errors import MoergeError
from moerge.experts.parts import part_bytes
from moerge.models.dense_files import DenseFiles
from moerge_coordinator.commands import app
from support.models import expert

PAGE = Path(__file__).parents[3] / "docs" / "scale.md"
COMMON = ("--experts", "16", "--tokens", "51200000")
MORE = ("--host-memory", "1TB")


def said(*options: str) -> str:
    result = CliRunner().invoke(app, ["size", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def rows(output: str) -> dict[str, list[str]]:
    """Label -> cells of the tables' rows."""
    cells = [[item.strip() for item in line.strip("│").split("│")] for line in output.splitlines() if "│" in line]
    return {label: cell for label, *cell in cells}


def page() -> list[list[str]]:
    """The cells of the page's table of shapes."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if "--shape 1b" in line)
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append([item.strip() for item in line.strip("|").split("|")])
    return table


def test_the_page_s_table_is_the_command_s_output() -> None:
    options, *table = page()
    assert len(table) > 20
    for column, given in enumerate(options[2:], 2):
        result = rows(said(*given.strip("`").split(), *COMMON))
        for item in table:
            place = {"coordinator": 0, "worker": 1, "file": 0}[item[0]]
            assert result[item[1]][place] == item[column], item


def test_json_has_bytes() -> None:
    result = json.loads(said("--shape", "70b", *COMMON, "--json"))
    assert result["parameters"] == 70_553_706_496
    assert result["files"]["a router contribution"] == 80 * 8 * (8192 * 8193 // 2 + 8192)
    assert result["coordinator"]["memory"]["checking contributions"] == 2 * 12 * 8192**2


def test_a_shape_is_that_of_a_config_or_an_experts_folder(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", 1)
    sizes = [json.loads(said("--config", str(path), *COMMON, "--json")) for path in (folder, folder / "config.json")]
    assert sizes[0] == sizes[1]
    assert sizes[0]["files"]["an expert's parts"] == part_bytes(DenseFiles(folder))


def test_head_is_the_largest_need_under_a_seed_body() -> None:
    """No body is merged or sent, and only parts are received."""
    seed, merged = (
        json.loads(said("--shape", "70b", *COMMON, "--body", body, "--json")) for body in ("seed", "regmean")
    )
    memory = seed["coordinator"]["memory"]
    assert max(memory, key=memory.__getitem__) == "making the head"
    assert "merging the body" not in memory
    assert (seed["coordinator"]["sent"], seed["worker"]["received"]) == (0, 0)
    assert seed["coordinator"]["received"] < merged["coordinator"]["received"]
    assert "an expert" not in seed["files"]
    assert "a body contribution" not in seed["files"]


def test_an_anchor_is_one_more_expert_that_nobody_sends() -> None:
    without, anchored = (json.loads(said("--shape", "70b", *COMMON, "--json", *more)) for more in ((), ("--anchor",)))
    made = sum(without["files"][f"a {kind} contribution"] for kind in ("head", "router"))
    grown = anchored["files"]["a version"] - without["files"]["a version"]
    assert grown > without["files"]["an expert's MLPs in a version"]
    sizes = [item["coordinator"]["disk"]["disk or S3"] for item in (without, anchored)]
    assert sizes[1] - sizes[0] == grown + made
    assert without["worker"] == anchored["worker"]
    assert without["coordinator"]["received"] == anchored["coordinator"]["received"]
    assert "the anchor's sums" in anchored["coordinator"]["memory"]
    refused = CliRunner().invoke(app, ["size", "--shape", "70b", *COMMON, "--body", "regmean", "--anchor"])
    assert "an anchor needs the seed's body" in str(refused.exception)


@pytest.mark.parametrize("given", [(), ("--shape", "8b", "--config", "config.json")])
def test_one_of_shape_and_config_is_required(given: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["size", *given, *COMMON])
    assert isinstance(result.exception, MoergeError)
    assert "expected one of --shape and --config" in str(result.exception)


@pytest.mark.parametrize("value", ["0", "-1", "much"])
def test_an_impossible_size_is_refused(value: str) -> None:
    result = CliRunner().invoke(app, ["size", "--shape", "8b", "--experts", value, "--tokens", "1"])
    assert result.exit_code == 2
    assert "--experts" in re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_more_host_memory_takes_fewer_windows() -> None:
    usual, more = (json.loads(said("--shape", "8b", *COMMON, "--json", *options))["worker"] for options in ((), MORE))
    assert (more["windows"], more["read"]) == (1, usual["read"] // usual["windows"])
