"""Where runs are on disk, and what a person means by them."""

from collections.abc import Sequence
from pathlib import Path

from mkbench.core.errors import UsageError
from mkbench.core.names import unknown
from mkbench.figures import FIGURES

RUNS = Path("results") / "runs"


def newest_run() -> Path:
    """The run directory under results/runs that was started last. Raises UsageError if there is none."""
    # plan.toml is written once, when a run starts: its age is the run's, whatever was drawn or resumed since.
    plans = sorted(RUNS.glob("*/plan.toml"), key=lambda plan: (plan.stat().st_mtime, plan.parent.name))
    if not plans:
        raise UsageError(
            f"no run under {RUNS}", hint="measure first with mkbench sweep, or name a run directory"
        )
    return plans[-1].parent


def split_figures(words: Sequence[str]) -> tuple[list[str], list[Path]]:
    """The names of figures (all if none is named) and the run directories among `words`.

    Raises UsageError for a word that is neither, with the near name.
    """
    names = [word for word in words if word in FIGURES]
    others = [word for word in words if word not in FIGURES]
    for word in others:
        if not Path(word).is_dir():
            raise unknown("figure or run directory", word, FIGURES)
    return names or list(FIGURES), [Path(word) for word in others]
