"""Asking for long work again, and for numbers that no row can have."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from contract.conftest import House, furnish
from support.contributions import Party, bearer, join, register
from support.models import expert
from support.processes import coordinator

from moerge.cli import wait
from moerge_proto.trunks import NewTrunk


def test_a_trunk_merged_again_after_another_is_the_current_one_again(tmp_path: Path) -> None:
    with coordinator(tmp_path / "home") as running, running.client() as operator:
        house = furnish(running, operator, tmp_path)
        other = join(running, "other")
        with other.client:
            second = register(other, expert(tmp_path / "second", seed=2))
        wait(operator, operator.merge_trunk(NewTrunk(experts=[*house.trunk.experts, second.digest])))
        assert wait(operator, operator.merge_trunk(NewTrunk(experts=house.trunk.experts))) == house.trunk.digest
        current = operator.current_trunk()
        assert current is not None
        assert current.digest == house.trunk.digest


@pytest.mark.parametrize("number", [2**63 - 1, 2**64])
@pytest.mark.parametrize("path", ["/v1/versions/{}", "/v1/versions/{}/files/config.json", "/v1/versions?after={}"])
def test_numbers_beyond_every_row_are_no_failure_of_the_coordinator(
    house: House, path: str, number: int
) -> None:
    answer = httpx.get(f"{house.url}{path.format(number)}", headers=bearer(house.coordinator.operator_token))
    assert answer.status_code in (200, 404, 422), answer.text


def test_an_upload_number_beyond_every_row_is_not_found(newcomer: Callable[..., Party]) -> None:
    answer = newcomer().post(f"/v1/uploads/{2**64}/commit", {})
    assert answer.status_code in (404, 422), answer.text
