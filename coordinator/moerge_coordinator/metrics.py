"""Figures for Prometheus, in the app's own registry."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from moerge.build import build
from moerge_proto.versions import SolveReport

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_SECONDS = (0.005, 0.02, 0.1, 0.5, 2, 10, 60, 600)
_SOLVE_SECONDS = (0.1, 1, 10, 60, 300, 1800, 7200, 36000)
_CONDITIONS = tuple(10.0**power for power in range(1, 17))
T = TypeVar("T")
Values = Mapping[tuple[str, ...], float]
"""Values of a gauge's labels -> its value."""


class Metrics:
    """The figures of a running coordinator. Labels are route templates instead of paths, so their number is bounded."""

    def __init__(self) -> None:
        self._registry = kept = CollectorRegistry()
        ProcessCollector(registry=kept)
        about = build()
        labels = {"version": about.version, "commit": about.commit or ""}
        Info("moerge_build", "Version and commit; an empty commit is unknown.", registry=kept).info(labels)
        where = ("method", "route")
        counter, timed = partial(Counter, registry=kept), partial(Histogram, buckets=_REQUEST_SECONDS, registry=kept)
        self._requests = counter("moerge_requests", "Answered requests.", (*where, "status"))
        self._seconds = timed("moerge_request_seconds", "Seconds until the complete answer.", where)
        self._received = counter("moerge_received_bytes", "Bytes of request bodies.", where)
        self._sent = counter("moerge_sent_bytes", "Bytes of answers.", where)
        self._uploads = counter("moerge_uploads", "Commits of uploads: stored, or refused.", ("outcome",))
        waits = "Seconds of writing transactions, including their wait for each other."
        self._transactions = timed("moerge_transaction_seconds", waits, ("name",))
        seconds, condition = "Seconds to solve the routers of a version.", "Condition of A + lambda I, of each layer."
        self._solve_seconds = timed("moerge_solve_seconds", seconds, buckets=_SOLVE_SECONDS)
        self._condition = timed("moerge_solve_condition", condition, buckets=_CONDITIONS)

    def count_request(self, method: str, route: str, status: int, seconds: float, received: int, sent: int) -> None:
        """`received` and `sent` are in bytes."""
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(seconds)
        self._received.labels(method, route).inc(received)
        self._sent.labels(method, route).inc(sent)

    def count_transaction(self, name: str, seconds: float) -> None:
        self._transactions.labels(name).observe(seconds)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Counts the commit of an upload; an error counts as a refusal."""
        outcome = "refused"
        try:
            yield
            outcome = "stored"
        finally:
            self._uploads.labels(outcome).inc()

    def timed_solve(self, solve: Callable[[], tuple[T, SolveReport]]) -> tuple[T, SolveReport]:
        """The result of a solve; counts its time and conditions."""
        start = time.perf_counter()
        routers, report = solve()
        self._solve_seconds.observe(time.perf_counter() - start)
        for layer in report.layers:
            self._condition.observe(layer.condition)
        return routers, report

    def add(self, name: str, help: str, labels: tuple[str, ...], read: Callable[[], Values]) -> None:
        """Adds a gauge that is read for each request of the figures."""
        self._registry.register(_Gauge(name, help, labels, read))

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self._registry)


@dataclass(frozen=True)
class _Gauge(Collector):
    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[], Values]

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(self.name, self.help, labels=self.labels)
        for values, number in sorted(self.read().items()):
            family.add_metric(values, number)
        yield family

    def describe(self) -> Iterable[Metric]:
        return []
