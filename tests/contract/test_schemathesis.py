"""Generated requests: answers conform to the OpenAPI document, and none is 5xx."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import one_of
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

from moerge_coordinator.bootstrap import make_app
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.database import open_database
from moerge_coordinator.storage.tables import TokenRow
from moerge_proto.digests import sha256_hex
from moerge_proto.owners import Role
from support.evaluations import evaluation
from support.federation import Federation, federation_of
from support.processes import Coordinator

pytestmark = pytest.mark.slow
OUT_OF_REACH = 2**40
"""An id that no generated request has, so that none revokes its own token."""
EXAMPLES = 20
"""Per operation."""
_REFUSALS = [401, 403, 404, 409, 410, 422]
"""Statuses of a refused request that conforms to the document."""
_CONFIG = schemathesis.Config.from_dict(
    {"checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", *_REFUSALS]}}}
)
_SCHEMA = schemathesis.openapi.from_dict(make_app(Settings(home=Path("unused"))).openapi(), config=_CONFIG)
OPERATIONS = {item.ok().label: item.ok() for item in _SCHEMA.get_all_operations() if isinstance(item, Ok)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with federation_of(tmp_path_factory.mktemp("schemathesis"), "law") as federation:
        furnish(federation)
        database = open_database(federation.server.home / "coordinator.sqlite")
        with database.transaction("test") as session:
            for number, role in enumerate(Role):
                owner = "law-owner" if role is Role.OWNER else None
                hashed = sha256_hex(secret(role).encode())
                session.add(TokenRow(id=OUT_OF_REACH + number, hash=hashed, role=role, owner=owner))
        database.close()
        yield federation.server


def furnish(federation: Federation) -> None:
    """One of everything, so that answers have content."""
    federation.contribute(federation.body())
    federation.contribute_heads()
    federation.operator.promote("champion", federation.solve().number)
    federation.operator.evaluate(evaluation(1))


def secret(role: Role) -> str:
    return f"moerge_{role.value}"


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as kept:
        kept.trust_env = False
        yield kept


@pytest.mark.parametrize("label", OPERATIONS)
def test_answers_are_those_of_the_document(server: Coordinator, session: requests.Session, label: str) -> None:
    """Sends conforming and other requests as operator and as owner."""
    operation = OPERATIONS[label]
    modes = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]

    @given(case=one_of(modes).filter(_sent_as_drawn))
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def run(case: schemathesis.Case[Any]) -> None:
        for role in (Role.OPERATOR, Role.OWNER):
            headers = {"Authorization": f"Bearer {secret(role)}"}
            case.call_and_validate(base_url=server.url, session=session, headers=headers)

    run()


def _sent_as_drawn(case: schemathesis.Case[Any]) -> bool:
    """Whether the API sees the request as it was drawn.

    An empty list as a parameter is missing in the address, even if its name is unknown. A drawn length or encoding of
    the body is refused by the server's parser.
    """
    drawn = {name.lower() for name in case.headers or {}}
    return [] not in (case.query or {}).values() and drawn.isdisjoint({"content-length", "transfer-encoding"})
