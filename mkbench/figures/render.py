"""Draw figures of a run directory: PNG and SVG, the drawn table as CSV, and where it came from as JSON.

The same records give the same bytes: a fixed salt for SVG ids, no dates, no style of the user's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mkbench import __version__
from mkbench.core.errors import EnvironmentProblem, UsageError
from mkbench.figures import FIGURES, FigureModule, figure_module, frame, style


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture to be written: who draws it, its tidy table and the records of its machine."""

    name: str
    stem: str
    module: FigureModule
    tidy: pd.DataFrame
    records: pd.DataFrame


def render_figures(
    run_dir: Path | Sequence[Path], names: Sequence[str] = tuple(FIGURES), out: Path | None = None
) -> list[Path]:
    """Write the figures `names` of one or more run directories below `out` and return the PNGs.

    `out` defaults to ``figures`` in the (first) run directory. Every machine (cluster, nodes, platform,
    transport) gets its own picture; with more than one, the file name says which. Nothing is written unless
    every figure can be drawn.

    Raises UsageError for an unknown figure, for a figure that no record fits, and for simulated records
    beside measured ones; EnvironmentProblem if `out` cannot be written.
    """
    run_dirs = [run_dir] if isinstance(run_dir, Path) else list(run_dir)
    modules = {name: figure_module(name) for name in names}
    df = frame.load_frame(run_dirs)
    frame.refuse_mixture(df)
    pictures = [picture for name, module in modules.items() for picture in _pictures(name, module, df)]
    target = out or run_dirs[0] / "figures"
    runs = [path.resolve().name for path in run_dirs]
    try:
        target.mkdir(parents=True, exist_ok=True)
        return [_write(picture, target, runs) for picture in pictures]
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write figures to {target}: {error.strerror}", hint="choose another --out"
        ) from error


def _pictures(name: str, module: FigureModule, df: pd.DataFrame) -> list[Picture]:
    """A picture for each machine with fitting records; the first machine's UsageError if there is none."""
    pictures, refusals = [], []
    for suffix, records in frame.by_machine(df):
        try:
            pictures.append(Picture(name, name + suffix, module, module.prepare(records), records))
        except UsageError as error:
            refusals.append(error)
    if not pictures:
        raise refusals[0]
    return pictures


def _write(picture: Picture, target: Path, runs: list[str]) -> Path:
    base = target / picture.stem
    picture.tidy.to_csv(base.with_name(f"{picture.stem}.csv"), index=False, lineterminator="\n")
    provenance = json.dumps(_provenance(picture, runs), indent=2) + "\n"
    base.with_name(f"{picture.stem}.json").write_text(provenance, encoding="utf-8")
    png = base.with_name(f"{picture.stem}.png")
    with style.applied(salt=picture.stem):
        fig = Figure()
        FigureCanvasAgg(fig)
        picture.module.draw(fig, picture.tidy)
        fig.savefig(png, metadata={"Software": None})
        fig.savefig(base.with_name(f"{picture.stem}.svg"), metadata={"Date": None, "Creator": None})
    return png


def _provenance(picture: Picture, runs: list[str]) -> dict[str, Any]:
    keys = sorted(set(picture.tidy["key"]))
    used = picture.records[picture.records["key"].isin(keys)]
    hashes = used.groupby("kernel")["source_hash"]
    first = used.iloc[0]
    return {
        "figure": picture.name,
        "runs": runs,
        "mkbench": __version__,
        "schema": sorted({int(value) for value in used["schema"].dropna()}),
        "cluster": first["cluster"],
        "nodes": int(first["nodes"]),
        "ranks_per_node": int(first["ranks_per_node"]),
        "platform": first["platform"],
        "transport": first["transport"],
        "simulated": bool(first["simulated"]),
        "source_hash": {str(kernel): sorted(set(values.dropna())) for kernel, values in hashes},
        "keys": keys,
    }
