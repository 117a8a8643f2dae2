"""A caller is told the kind of the coordinator's own failure, and nothing that its text may hold."""

import errno

import pytest

from moerge_coordinator.problems import failure


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("password=secret"), 500), (OSError(errno.ENOSPC, "no space", "/home/secret"), 507)],
)
def test_a_failure_s_text_stays_here(error: Exception, status: int) -> None:
    problem = failure(error)
    assert problem.status == status
    assert "secret" not in problem.model_dump_json()
