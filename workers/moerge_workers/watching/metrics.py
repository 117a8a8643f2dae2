"""A run's metrics for Prometheus."""

from collections.abc import Iterator
from contextlib import contextmanager

from moerge.errors import MoergeError
from moerge_proto.progress import Stage
from moerge_workers.watching.status import Status


@contextmanager
def served(host: str, port: int | None, status: Status) -> Iterator[None]:
    """Serve the metrics at http://HOST:PORT/metrics, if a port is set. MoergeError: it can't listen there."""
    if port is None:
        yield
        return
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

    def gauge(name: str, text: str, value: float) -> Metric:
        return GaugeMetricFamily(f"moerge_worker_{name}", text, value=value)

    class Figures(Collector):
        def collect(self) -> Iterator[Metric]:
            state = status.state
            yield gauge("shards_done", "Finished shards of this contribution.", state.shards_done)
            yield gauge("shards_planned", "Shards of this contribution.", state.shards_total)
            yield CounterMetricFamily("moerge_worker_tokens", "Tokens computed since the start.", value=state.tokens)
            lost = "Ray actors lost and replaced."
            yield CounterMetricFamily("moerge_worker_actor_restarts", lost, value=state.restarts)
            sent = CounterMetricFamily("moerge_worker_sent_bytes", "Bytes ever sent from this home.", labels=["kind"])
            for kind, size in sorted(state.sent.items()):
                sent.add_metric([kind], size)
            yield sent
            heard = 0.0 if state.heard is None else state.heard.timestamp()
            answered = "Time of the coordinator's last answer; 0: never."
            yield gauge("coordinator_answered_timestamp_seconds", answered, heard)
            stage = GaugeMetricFamily("moerge_worker_stage", "1 for the current stage.", labels=["stage"])
            for item in Stage:
                stage.add_metric([item.value], item is state.stage)
            yield stage

    registry = CollectorRegistry()
    registry.register(Figures())
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        what, todo = (
            f"can't listen on {host}:{port}: {error.strerror}",
            "choose an address of this machine, or another port",
        )
        raise MoergeError(what, where="`metrics_port`", todo=todo) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
