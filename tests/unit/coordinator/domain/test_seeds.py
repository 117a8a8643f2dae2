"""The seed that parts are for."""

import pytest

from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.seeds import seed_of
from moerge_coordinator.problems import RefusedError
from moerge_proto.experts import Parts
from support.rows import add_body


def test_only_a_registered_seed_is_found(ports: Ports) -> None:
    with ports.database.transaction("test") as session:
        seed = add_body(session)
        assert seed_of(session, Parts(expert="1" * 64, body=seed.digest, fitted=True)) is seed
        with pytest.raises(RefusedError, match=f"no seed with body {'0' * 64}"):
            seed_of(session, Parts(expert="1" * 64, body="0" * 64, fitted=True))
