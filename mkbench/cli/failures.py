"""What a failure looks like: one line on stderr that says what to do next, and an exit code."""

import errno
import os
import sys
import traceback

import click

from mkbench.cli.ranks import is_speaker, launcher_rank
from mkbench.core.errors import EnvironmentProblem, MkbenchError, UsageError

BUG_EXIT_CODE = 70
INTERRUPTED_EXIT_CODE = 130


class Interrupted(MkbenchError):
    """Ctrl-C during a measurement; what was recorded is kept."""

    exit_code = INTERRUPTED_EXIT_CODE


def report(error: Exception) -> int:
    """Print one line about `error` on stderr and return the exit code.

    Every rank under a launcher meets the same usage and environment errors, so only rank 0 prints those.
    """
    if isinstance(error, BrokenPipeError):
        # The reader has gone (as in `mkbench list | head`); Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if os.environ.get("MKBENCH_TRACEBACK"):
        traceback.print_exception(error)
    code, line = _describe(error)
    shared = isinstance(error, UsageError | EnvironmentProblem | click.ClickException)
    if is_speaker():
        print(line, file=sys.stderr)
    elif not shared:
        print(f"rank {launcher_rank()}: {line}", file=sys.stderr)
    return code


def _describe(error: Exception) -> tuple[int, str]:
    if isinstance(error, MkbenchError):
        return error.exit_code, _line(str(error), error.hint)
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "mkbench"
        return error.exit_code, _line(error.format_message().rstrip("."), f"see {path} --help")
    if isinstance(error, click.ClickException):
        return error.exit_code, _line(error.format_message(), None)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentProblem.exit_code, _line(f"cannot write: {error.strerror}", "make room")
    if isinstance(error, click.Abort):
        return INTERRUPTED_EXIT_CODE, "Error: interrupted"
    what = f"this is a bug in mkbench: {type(error).__name__}: {error}"
    return BUG_EXIT_CODE, _line(what, "set MKBENCH_TRACEBACK=1 to see where, and report it")


def _line(message: str, hint: str | None) -> str:
    join = " " if message.endswith("?") else "; "
    text = f"Error: {message}{join}{hint}" if hint else f"Error: {message}"
    return " ".join(text.split())
