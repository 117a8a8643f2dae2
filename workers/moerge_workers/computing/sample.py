"""Samples of an owner's documents."""

from functools import partial

from moerge.documents.fitting_sample import fitting_sample
from moerge.documents.splits import text_digest
from moerge.models.tokens import Tokens
from moerge_proto.progress import Stage
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.data.documents import Data
from moerge_workers.watching.events import Events


def sample_of(
    data: Data,
    events: Events,
    limits: StatisticsSettings,
    tokens: int,
    least_documents: int,
    title: str,
    *,
    by_key: bool = False,
) -> list[list[Tokens]]:
    """The rows of each document of a sample of the statistics' split.

    Args:
        limits: limits of rows and documents.
        title: of the progress bar.
        by_key: choose by MACs under the owner's key, which nobody else can predict, instead of digests.
    """
    events.enter(Stage.READING)
    with events.track(title, data.size(), "B") as tracker:
        documents = (
            (mac if by_key else text_digest(document.text), partial(data.encode, document))
            for mac, split, document in data.documents(tracker)
            if split == "statistics"
        )
        return fitting_sample(documents, limits, tokens, least_documents)
