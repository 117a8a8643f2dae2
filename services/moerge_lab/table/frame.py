"""The meaning of a table's cells."""

from dataclasses import dataclass

from moerge_lab.recipes.dense import expert_row


@dataclass(frozen=True)
class Frame:
    """The meaning of a table's cells.

    Attributes:
        hundred: the model that has 100.
        reference: its row; None: each domain's own expert.
        elsewhere: name of the last column, where 100 is the seed model.
        elsewhere_text: its text.
    """

    hundred: str = "the domain's own dense expert"
    reference: str | None = None
    elsewhere: str = "elsewhere"
    elsewhere_text: str = "text of no domain"

    @property
    def title(self) -> str:
        """The title of the scores."""
        return f"Normalised perplexity: 100 = {self.hundred}, higher is better"

    def own(self, domain: str) -> str:
        """The row that normalises a domain."""
        return self.reference or expert_row(domain)


NORMALISED = Frame()
"""Of experts and of models that are made of them."""
SPECIALISTS = Frame("the seed model", "seed", "generic", "held-out text of the experts' domains")
"""Of models that are specialised on texts of their own."""
