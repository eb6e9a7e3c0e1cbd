"""Drawing the figures of a run and saying where everything is."""

from collections.abc import Sequence
from pathlib import Path

from mkbench.cli.console import print_line
from mkbench.core.errors import UsageError
from mkbench.figures import FIGURES
from mkbench.figures.render import render_figures


def print_pictures(run: Path) -> None:
    """Draw every figure that the records of `run` can fill, and print all paths."""
    print_line(f"records   {run / 'records.jsonl'}")
    for name in FIGURES:
        try:
            drawn = render_figures(run, [name])
        except UsageError as error:
            # Not every sweep has what every figure shows.
            print_line(f"{name}      not drawn: {error}")
            continue
        print_paths(name, drawn)


def print_paths(name: str, drawn: Sequence[Path]) -> None:
    """One line a picture."""
    for picture in drawn:
        print_line(f"{name}      {picture}")
