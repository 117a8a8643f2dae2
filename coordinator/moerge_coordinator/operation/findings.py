"""Results of the verification of a home."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A deviation."""

    what: str  # missing, altered, replaced, unchecked or litter; the last two are harmless
    file: str  # relative to the home
    digest: str  # of the expected content, or the row's name
    needed_by: tuple[str, ...]  # experts, bodies, contributions and versions
    todo: str

    @property
    def damage(self) -> bool:
        return self.what not in ("unchecked", "litter")
