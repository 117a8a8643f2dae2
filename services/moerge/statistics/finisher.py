"""The step from exact router sums to the file that is sent."""

import os
from pathlib import Path

from moerge.statistics.passes import RouterPass
from moerge_proto.statistics_file import RouterManifest, StatisticsSettings


class Finisher:
    """Sends exact router sums as they are. A subclass makes other files of them, whose manifests say so."""

    is_plain = True

    def settings(self, settings: StatisticsSettings) -> StatisticsSettings:
        """The settings of its files."""
        return settings

    def passing(self, work: RouterPass, beside: Path, blank: RouterManifest) -> RouterPass:
        """The pass whose sums it takes. Its own files have the name `beside`, with another suffix."""
        return work

    def prepare(self, work: RouterPass, settings: StatisticsSettings) -> None:
        """Called before the pass computes a file's sums."""

    def write(self, exact: Path, path: Path, work: RouterPass) -> None:
        """Writes the file at `path`, of exact sums."""
        os.replace(exact, path)

    def clear(self, work: RouterPass) -> None:
        """Removes its own files, once a file is written."""


PLAIN = Finisher()
