"""The report of a merge: each domain's score in the version, compared with its own expert."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.console import RenderableType
from rich.table import Table

from moerge.versions.card_scores import ScoreRow, scores_text
from moerge_proto.normalised import average

SCORED_TOKENS = 10_000
"""Tokens per domain for the comparison of the version with the experts."""
LOST = 10.0
"""Least loss of a domain against its own expert, in points, with a warning."""
FLOAT32_LIMIT = 2.0**24
"""Condition above which float32 products don't determine a router's weakest directions."""
OWN_WORDS = "give texts to measure their loss"
"""The cost of generated text."""
UNFITTED = "that cost the demo's newcomer 7 points; fit its MLPs"
"""The cost of MLPs as trained in a body without their expert, measured in moerge_lab/figures/bodies.md."""

KNOWN = "experts that were trained on these documents know them, so their versions' figures are too low"
"""The bias of scores on a part of the text that experts may have been trained on."""

_SHOWN = 2  # experts shown per domain


@dataclass(frozen=True)
class DomainCounts:
    """The text of a domain's statistics; `tokens` are those that count."""

    documents: int
    tokens: int


@dataclass(frozen=True)
class DomainScore:
    """Perplexities on a domain's held-out documents, and `normalised`: 100 x the expert's / the version's.

    `shares`: each expert's share of the scored tokens by first choice, in slot order, over all layers.
    """

    expert: float
    version: float
    normalised: float
    tokens: int
    shares: Sequence[float]


@dataclass(frozen=True)
class Report:
    """The version's folder, and each domain's text and score, if scored.

    Attributes:
        conditions: least and largest condition of A + lambda I over the layers.
        generated: domains with statistics of text that their expert has written.
        held_out: domains that are scored on other documents than a part of the text.
        unfitted: domains whose expert isn't in the merged body, with MLPs as trained.
        seeds: domains whose expert is the seed of the body, which the average leaves out.
        chat: a sentence on experts with another chat template than the version; empty if there are none.
    """

    folder: str
    domains: Sequence[str]
    counts: Sequence[DomainCounts]
    scores: Sequence[DomainScore | None]
    conditions: tuple[float, float]
    generated: Sequence[str] = ()
    held_out: Sequence[str] = ()
    unfitted: Sequence[str] = ()
    seeds: Sequence[str] = ()
    chat: str = ""

    @property
    def average(self) -> float | None:
        """Mean normalised perplexity, without that of the seed; None unless every domain is scored."""
        pairs = zip(self.domains, self.scores, strict=True)
        return average(None if item is None else item.normalised for name, item in pairs if name not in self.seeds)

    @property
    def card_scores(self) -> str:
        """The model card's section of scores; empty if no domain is scored."""
        pairs = list(zip(self.domains, self.scores, strict=True))
        rows = [ScoreRow(name, item.tokens, item.expert, item.version, item.normalised) for name, item in pairs if item]
        missing = [domain for domain, score in pairs if score is None]
        known = self._known
        note = f" ({', '.join(known)}: set aside from the given text; {KNOWN})" if known else ""
        text = scores_text(f"on documents that are in no statistics{note}", rows, self.average, missing)
        names = ", ".join(self.generated)
        generated = f"Statistics of text that the expert itself wrote by prompts: {names}.\n" if names else ""
        return "\n".join(filter(None, (text, generated)))

    @property
    def _scored(self) -> list[str]:
        return [domain for domain, score in zip(self.domains, self.scores, strict=True) if score is not None]

    @property
    def _known(self) -> list[str]:
        """Domains that are scored on a part of the given text."""
        return [domain for domain in self._scored if domain not in self.held_out]

    @property
    def warnings(self) -> list[str]:
        result = [
            f"{domain} loses {100 - score.normalised:.1f} points against its own expert"
            for domain, score in zip(self.domains, self.scores, strict=True)
            if score is not None and score.normalised < 100 - LOST
        ]
        if self.conditions[1] > FLOAT32_LIMIT:
            result.append(f"a router's condition is {self.conditions[1]:.0e}; raise lambda, or give more text")
        if unscored := [domain for domain in self.generated if domain not in self._scored]:
            names = ", ".join(unscored)
            result.append(f"not scored, because their experts wrote their text: {names}; {OWN_WORDS}")
        if self.unfitted:
            result.append(f"not in the body, and not fitted to it: {', '.join(self.unfitted)}; {UNFITTED}")
        return [*result, self.chat] if self.chat else result

    def _routed(self, score: DomainScore) -> str:
        largest = sorted(zip(score.shares, self.domains, strict=True), reverse=True)[:_SHOWN]
        return ", ".join(f"{domain} {100 * share:.0f} %" for share, domain in largest)

    def to_json(self) -> dict[str, object]:
        rows = []
        for domain, counts, score in zip(self.domains, self.counts, self.scores, strict=True):
            rows.append({"domain": domain, **asdict(counts), "score": None if score is None else asdict(score)})
            rows[-1]["held_out"] = domain in self.held_out
        return {
            "folder": self.folder,
            "average": self.average,
            "domains": rows,
            "conditions": list(self.conditions),
            "warnings": self.warnings,
        }

    def render(self) -> Iterator[RenderableType]:
        """A table and sentences for a terminal."""
        title = "Normalised perplexity on held-out documents: 100 = the domain's own expert"
        table = Table("domain", "tokens", "expert", "version", "normalised", "routed to", title=title)
        for column in table.columns[1:5]:
            column.justify = "right"
        for domain, counts, score in zip(self.domains, self.counts, self.scores, strict=True):
            if score is None:
                table.add_row(domain, f"{counts.tokens:,}")
                continue
            figures = [f"{score.expert:.2f}", f"{score.version:.2f}", f"{score.normalised:.1f}"]
            table.add_row(domain, f"{counts.tokens:,}", *figures, self._routed(score))
        if self.average is not None:
            table.add_section()
            table.add_row("average", "", "", "", f"{self.average:.1f}")
        yield table
        least, most = (f"{condition:.0e}" for condition in self.conditions)
        yield "Columns: tokens of the statistics; perplexity of the expert and of the version; share of scored tokens."
        if known := self._known:
            yield f"Scored on a part of the given text: {', '.join(known)}; {KNOWN}. `held_out` names others."
        yield f"Routers: condition of A + lambda I from {least} to {most}."
        for line in self.warnings:
            yield f"warning: {line}"
        yield f"The version is in {self.folder}"
