"""The paper's figures, drawn from the records of a run directory.

A figure is a module with two functions: ``prepare(df)`` turns the records of one machine into the tidy
table that the picture shows (and that is written beside it as CSV); ``draw(fig, df)`` draws that table only.

Nothing here imports pandas or matplotlib until a figure is asked for: the command line lists the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from mkbench.core.names import unknown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Name on the command line -> the module that draws it.
FIGURES: Mapping[str, str] = {
    "fig3": "mkbench.figures.fig3",
    "fig7": "mkbench.figures.fig7",
}


class FigureModule(Protocol):
    """What every module in FIGURES provides."""

    def prepare(self, df: pd.DataFrame) -> pd.DataFrame:
        """Return the tidy table to draw; raise UsageError when no record fits."""

    def draw(self, fig: Figure, df: pd.DataFrame) -> None:
        """Draw what `prepare` returned; sets the size of `fig`."""


def figure_module(name: str) -> FigureModule:
    """Import the module of figure `name`; UsageError for a name that does not exist."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return cast(FigureModule, import_module(FIGURES[name]))
