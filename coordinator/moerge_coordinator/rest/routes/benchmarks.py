"""Benchmarks: results of public tasks that operators and owners report of versions."""

from typing import Annotated

from fastapi import APIRouter, Query

from moerge_coordinator.domain import benchmarks, versions
from moerge_coordinator.rest.auth import Anyone, OperatorOrOwner, Route
from moerge_coordinator.rest.lists import After, Flag, Number, page
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import BenchmarkRow
from moerge_proto.benchmarks import Benchmark, NewBenchmarks
from moerge_proto.messages import Page

router = APIRouter(prefix="/versions/{number}/benchmarks", tags=["benchmarks"], route_class=Route)
Replaced = Annotated[Flag, Query(description="Also lists results that a later report replaced.")]


@router.post("", status_code=201)
def report(state: Coordinator, caller: OperatorOrOwner, number: Number, new: NewBenchmarks) -> list[Benchmark]:
    """Accepts results of a served version; an owner needs a ready expert in it. Idempotent.

    Each replaces the earlier result of the same reporter, task and metric.
    """
    with state.database.transaction("report benchmarks") as session:
        return benchmarks.report(session, caller.owner, number, new)


@router.get("")
def list_benchmarks(
    state: Coordinator, caller: Anyone, number: Number, after: After = 0, replaced: Replaced = False
) -> Page[Benchmark]:
    """Lists the reported results of a version; for an owner, the operators' and its own."""
    with state.database.reading() as session:
        versions.find(session, number)
        query = benchmarks.visible(number, caller.owner, replaced=replaced)
        return page(session, query, BenchmarkRow.number, after, lambda row: message(Benchmark, row))
