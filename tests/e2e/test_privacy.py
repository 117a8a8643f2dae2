"""A worker with a privacy budget at a real coordinator: its file counts as any other, and nothing exact leaves."""

from pathlib import Path
from typing import Any

from moerge_proto.statistics_file import Privacy, StatisticsFile
from support.federation import federation_of
from support.versions import loaded
from support.worker import worker_of

POLICY = {"head_contributions": False}
GIVEN: dict[str, Any] = {
    "privacy": {"epsilon": 0.5}, "statistics": {"tokens_per_document": 64, "context": 64}, "fit": False,
    "policy": POLICY,
}  # fmt: skip


def test_sums_with_noise_are_accepted_and_solved(tmp_path: Path) -> None:
    with federation_of(tmp_path, "art", "law") as made:
        made.contribute(made.body(), "art")
        with worker_of(made.server, made.members["law"], tmp_path, made.seed) as worker:
            worker.write("a.jsonl", 0, 150)
            assert worker.run(**GIVEN) == "ran"
            [sent] = worker.active()
            assert (sent.documents, sent.tokens, sent.warnings) == (150, 150 * 64, [])
            with StatisticsFile(made.server.home / "blobs" / sent.digest[:2] / sent.digest) as file:
                assert file.manifest.settings.privacy == Privacy(epsilon=0.5)
            loaded(made.version(made.solve().number))
            assert worker.run(**GIVEN) == "ran"
            assert worker.active() == [sent]
            worker.write("a.jsonl", 10, 140)  # ten documents are gone, so all others would leave again
            refused = worker.run(**{**GIVEN, "policy": {**POLICY, "min_documents": 1, "min_tokens": 1}})
            assert "140 documents have spent their privacy budget, epsilon 0.5" in refused
            assert worker.active() == [sent]
