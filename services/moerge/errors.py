"""The error tree: each error has a fault, a place and a remedy."""

from moerge.printable import printable
from moerge_proto.problems import Problem, ProblemType


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: cleans up as Ctrl-C does."""


class MoergeError(Exception):
    """Base of every error that a user may see: the fault, its place (file, tensor, layer or field), and the remedy.

    Its texts name fields in backquotes: `host_memory`. The command line shows them as options. They have no control
    characters, whatever a file or a coordinator says.
    """

    kind = ProblemType.INVALID_REQUEST

    def __init__(self, what: str, *, where: str = "", todo: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.todo = map(printable, (what, where, todo))

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"\n  what to do: {self.todo}" if self.todo else ""
        return f"{place}{self.what}{advice}"

    def problem(self) -> Problem:
        """The error as problem+json."""
        return Problem.of(self.kind, self.what, field=self.where, todo=self.todo)


class CheckpointError(MoergeError):
    """A checkpoint folder or file is missing, damaged or of an unknown kind."""

    kind = ProblemType.INCOMPATIBLE_EXPERT


class IncompatibleExpertError(MoergeError):
    """An expert differs from the others, or its architecture has no exact stock MoE class."""

    kind = ProblemType.INCOMPATIBLE_EXPERT


class ContributionError(MoergeError):
    """A contribution's numbers are impossible for an honest pass."""

    kind = ProblemType.INVALID_CONTRIBUTION


class SolveError(MoergeError):
    """A layer's ridge system can't be factorised."""

    kind = ProblemType.CONFLICT


class CoordinatorError(MoergeError):
    """The coordinator refused a request; has its problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail, where=problem.field, todo=problem.todo)
        self._problem = problem

    @property
    def type(self) -> str:
        """The problem's stable type, a URN."""
        return self._problem.type

    def problem(self) -> Problem:
        return self._problem
