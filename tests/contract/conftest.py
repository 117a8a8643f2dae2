"""A coordinator without owners, shared by a module's tests."""

from collections.abc import Iterator

import pytest

from support.processes import Coordinator, coordinator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with coordinator(tmp_path_factory.mktemp("coordinator") / "home") as running:
        yield running
