"""The stage of the body contribution: grams and token counts of the expert itself, for merged bodies."""

from pathlib import Path

from moerge.statistics.contribution import body_manifest, withhold_rare
from moerge.statistics.passes import BodyPass
from moerge_workers.contributing import own_sums
from moerge_workers.contributing.context import Context
from moerge_workers.contributing.own_sums import Outcome


def run(context: Context) -> Outcome:
    """Send the expert's body contribution. Counts of rare tokens stay in the journal."""
    settings, expert = context.settings, context.expert
    blank = body_manifest(expert.owner, expert, expert.digest, settings.statistics)
    work = BodyPass(expert, blank.exponents, settings.statistics.precision, settings.device)

    def without_rare(whole: Path) -> Path:
        path = whole.with_name(f"{whole.stem}-sent.safetensors")
        withhold_rare(whole, path, settings.rare_below)
        return path

    return own_sums.contribute(context, blank, work, without_rare)
