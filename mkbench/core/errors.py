"""The one error tree. The class decides the exit code; the text is one line and says what to do next."""

from typing import ClassVar


class MkbenchError(Exception):
    """A failure with a one-line message and, if there is one, the next step.

    `str(error)` is the message alone; `hint` is printed after it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class CheckFailed(MkbenchError):
    """A check that the user asked for did not hold."""

    exit_code = 1


class UsageError(MkbenchError):
    """What was asked cannot be done, whatever the machine."""

    exit_code = 2


class EnvironmentProblem(MkbenchError):
    """This machine lacks something: a compiler, MPI, memory, a GPU."""

    exit_code = 3


class HangError(MkbenchError):
    """A wait passed its deadline, or a rank stopped making progress."""

    exit_code = 4


class WrongResult(MkbenchError):
    """A kernel computed something else than the reference."""

    exit_code = 5


class Regression(MkbenchError):
    """Slower than the result it was compared with."""

    exit_code = 6


class PartialResults(MkbenchError):
    """Some points have results and some do not."""

    exit_code = 7
