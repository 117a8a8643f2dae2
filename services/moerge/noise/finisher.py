"""The finisher that adds noise."""

from dataclasses import replace
from pathlib import Path

from moerge.noise.noisy_sums import release, write_whitenings
from moerge.noise.whitening import Whitenings
from moerge.statistics.finisher import Finisher
from moerge.statistics.passes import RouterPass
from moerge_proto.statistics_file import Privacy, RouterManifest, StatisticsSettings


class NoiseFinisher(Finisher):
    """Makes contributions with noise. It is drawn once per file: another file costs the budget again."""

    is_plain = False

    def __init__(self, privacy: Privacy) -> None:
        self.privacy = privacy

    def settings(self, settings: StatisticsSettings) -> StatisticsSettings:
        return settings.private(self.privacy)

    def passing(self, work: RouterPass, beside: Path, blank: RouterManifest) -> RouterPass:
        return replace(work, sums=Whitenings(beside.with_suffix(".whitening"), self.privacy, blank.layers))

    def prepare(self, work: RouterPass, settings: StatisticsSettings) -> None:
        write_whitenings(replace(work, sums=None), settings, _whitenings(work).path)

    def write(self, exact: Path, path: Path, work: RouterPass) -> None:
        release(exact, path, work.body, _whitenings(work))
        exact.unlink()

    def clear(self, work: RouterPass) -> None:
        _whitenings(work).path.unlink(missing_ok=True)


def _whitenings(work: RouterPass) -> Whitenings:
    if not isinstance(work.sums, Whitenings):
        raise ValueError("expected the pass that `passing` gives")
    return work.sums
