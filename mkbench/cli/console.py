"""What a person sees: tables, a progress bar on a terminal, plain lines otherwise."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from mkbench.core.units import format_skew, format_us

# Piped output is for files and other programs: it must not be folded at the 80 columns rich falls back to.
PIPED_WIDTH = 200


def console() -> Console:
    """A console on standard output; without a terminal it writes no escape codes."""
    screen = Console(highlight=False, markup=False, emoji=False)
    if not screen.is_terminal:
        screen = Console(highlight=False, markup=False, emoji=False, width=PIPED_WIDTH, no_color=True)
    return screen


def print_line(text: str) -> None:
    """One line, never folded."""
    console().print(text, soft_wrap=True)


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), fold: bool = False
) -> None:
    """A table of strings; the columns named in `right` are aligned to the right.

    With `fold` long cells are folded where the terminal is too narrow; numbers must stay whole.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in header:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    screen = console()
    if not fold:
        screen.width = max(screen.width, PIPED_WIDTH)
    with screen.capture() as captured:
        screen.print(table)
    # rich pads every line to the width of the table, which is noise in a file.
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


class Reporter(Protocol):
    """Hears of each record as it is written."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def on_record(self, record: dict[str, Any]) -> None: ...


def reporter(total: int, done: int = 0) -> Reporter:
    """A bar with the time left on a terminal, else one line a point.

    `done` of the `total` points are there already.
    """
    screen = console()
    return Bar(screen, total, done) if screen.is_terminal else Lines(screen, total, done)


class Bar:
    def __init__(self, screen: Console, total: int, done: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=screen,
        )
        # Points that were there before took no time: counting them would spoil the estimate.
        self._task = self._progress.add_task("starting", total=total - done)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def on_record(self, record: dict[str, Any]) -> None:
        self._progress.update(self._task, advance=1, description=point_name(record))
        if record["status"] != "ok":
            self._progress.console.print(f"{point_name(record)}: {outcome(record)}")


class Lines:
    def __init__(self, screen: Console, total: int, done: int) -> None:
        self._screen, self._total, self._done = screen, total, done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def on_record(self, record: dict[str, Any]) -> None:
        self._done += 1
        count = f"[{self._done:>{len(str(self._total))}}/{self._total}]"
        self._screen.print(f"{count} {point_name(record)}: {outcome(record)}", soft_wrap=True)


def point_name(record: Mapping[str, Any]) -> str:
    """ "gemm_ar 2048 static 16" or "gemm_ar atomic 2048 adaptive"."""
    kernel = kernel_name(record["kernel"], record.get("reduction"))
    words = (kernel, shape_name(record), record["policy"], record["comm_sms"])
    return " ".join(str(word) for word in words if word is not None)


def kernel_name(kernel: str, reduction: str | None) -> str:
    """ "gemm_ar", or "gemm_ar atomic" where it does not sum in order."""
    return f"{kernel} {reduction}" if reduction == "atomic" else kernel


def shape_name(record: Mapping[str, Any]) -> str:
    """The size and, where there is one, the skew; or the shape where it was given in full."""
    shape = record["shape"]
    if record["size"] is None:
        return " ".join(f"{name}={extent}" for name, extent in shape.items())
    return ", ".join([str(record["size"]), *([format_skew(shape["skew"])] if "skew" in shape else [])])


def outcome(record: Mapping[str, Any]) -> str:
    """The latency of a point that went well, else its status and what went wrong."""
    if record["latency_us"] is not None:
        return format_us(record["latency_us"]["median"])
    check = record["check"] or {}
    reason = check.get("first") or record["message"]
    return f"{record['status']}: {reason}" if reason else str(record["status"])
