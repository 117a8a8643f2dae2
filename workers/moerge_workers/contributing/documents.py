"""The owner's documents: a first look at them, and a sample to fit to."""

from dataclasses import dataclass
from functools import partial

from moerge.documents.fitting_sample import fitting_sample
from moerge.documents.splits import text_digest
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge_proto.progress import Stage
from moerge_workers.computing.finishing import Finishing
from moerge_workers.data.documents import Data
from moerge_workers.data.first_documents import read_first
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events


@dataclass(frozen=True)
class Documents:
    """The owner's documents, read as the settings say; `events` receives the progress."""

    settings: Settings
    data: Data
    events: Events

    def look(self, expert: DenseExpert, finishing: Finishing) -> None:
        """Read the first documents, to find unusable data before anything is sent, and print their counts.

        Raises:
            MoergeError: documents are unreadable, or too few for the `finishing` of router contributions.
        """
        self.events.enter(Stage.READING)
        limits = finishing.settings(self.settings.statistics)
        first = read_first(self.settings, self.data, expert.config.hidden_size, limits)
        self.events.say(f"data: {first.summary}")

    def sample(self, tokens: int) -> list[list[Tokens]]:
        """As `fitting_sample`, of the statistics split, with the policy's least number of documents."""
        self.events.enter(Stage.READING)
        with self.events.track("choosing documents to fit to", self.data.size(), "B") as tracker:
            documents = (
                (text_digest(document.text), partial(self.data.encode, document))
                for _, split, document in self.data.documents(tracker)
                if split == "statistics"
            )
            return fitting_sample(documents, self.settings.statistics, tokens, self.settings.policy.min_documents)
