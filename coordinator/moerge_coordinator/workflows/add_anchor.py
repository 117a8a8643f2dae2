"""The addition of an anchor: its statistics, of public text under the seed's body, and its registration."""

import shutil
from collections.abc import Mapping
from functools import partial
from typing import Any

from dbos import DBOS

from moerge.documents.conversations import encode, plain
from moerge.documents.pool import encoded_pool
from moerge.errors import MoergeError
from moerge.models.dense_files import DenseFiles
from moerge.models.tokens import Tokens
from moerge.statistics.contribution import Computing, head_manifest, router_manifest, summed
from moerge.statistics.passes import HeadPass, Pass, RouterPass
from moerge.versions.file_plans import copied_bytes
from moerge_coordinator.domain import anchors, seeds
from moerge_coordinator.log import progress
from moerge_coordinator.workflows.steps import GONE, Outcome, Work, telling_problems
from moerge_proto.anchors import NewAnchor
from moerge_proto.digests import digest_of as json_digest
from moerge_proto.options import ANCHOR
from moerge_proto.statistics_file import Kind, Manifest, StatisticsSettings

SETTINGS = StatisticsSettings()
"""Of the anchor's statistics. Its shards have an empty key, so anyone can make the same bytes again."""


@DBOS.dbos_class()
class AddAnchor(Work):
    title = "adding the anchor"

    @DBOS.workflow()
    def add_anchor(self, body: str, new: dict[str, Any]) -> Outcome:
        while True:
            made = self._compute(body, new)
            outcome = made if "problem" in made else self._record(body, made["result"])
            if outcome != GONE:
                return outcome

    @DBOS.step()
    @telling_problems
    def _compute(self, body: str, new: dict[str, Any]) -> dict[Kind, str]:
        """The contributions of head and routers, as blobs; an interrupted pass continues from its journal."""
        ports = self.ports
        with ports.database.reading() as session:
            row = anchors.seed_of(session, body)
        digest, own, parts = seeds.digest_of(row), ports.folders.body(row), seeds.parts_of(ports, row)
        documents = _documents(parts, NewAnchor.model_validate(new).texts)
        heads = head_manifest(ANCHOR, parts, digest, SETTINGS, ANCHOR)
        routers = router_manifest(ANCHOR, digest, ANCHOR, row, SETTINGS)
        work, made = ports.settings.home / "anchor" / json_digest({"body": body, **new}), dict[Kind, str]()
        passes: list[tuple[Manifest, Pass]] = [
            (heads, HeadPass(parts, heads.exponents, body=own)),
            (routers, RouterPass(parts, own, routers.exponents)),
        ]
        work.mkdir(parents=True, exist_ok=True)
        try:
            for blank, item in passes:
                path = summed(blank, item, documents, work / item.kind, Computing(progress=progress()))
                made[item.kind] = ports.blobs.put(item.kind, partial(copied_bytes, path)).sha256
        finally:
            shutil.rmtree(work)  # a killed process leaves it
        return made

    @DBOS.step()
    @telling_problems
    def _record(self, body: str, made: Mapping[Kind, str]) -> str | None:
        with self.ports.database.transaction("add anchor") as session:
            return anchors.add(session, self.ports, anchors.seed_of(session, body), made)


def _documents(seed: DenseFiles, texts: list[str] | None) -> list[Tokens]:
    """The texts for the seed's tokenizer, by default the pool's; refuses too few tokens."""
    if texts is None:
        return encoded_pool(seed.tokenizer)
    documents, hidden = [encode(seed.tokenizer, plain(text)) for text in texts], int(seed.config.hidden_size)
    if (tokens := sum(map(len, documents))) < hidden:
        todo = f"give at least {hidden:,} tokens, the hidden size, or omit the texts"
        raise MoergeError(f"{tokens:,} tokens in {len(texts):,} documents", where="texts", todo=todo)
    return documents
