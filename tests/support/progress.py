"""Silent progress."""


class Silent:
    """A tracker that says nothing."""

    def advance(self, n: int) -> None:
        pass
