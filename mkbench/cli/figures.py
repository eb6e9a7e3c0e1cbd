from pathlib import Path

import click

from mkbench.cli.options import DIRECTORY


@click.command()
@click.argument("words", nargs=-1, metavar="[FIGURE]... [RUN_DIR]...")
@click.option("--out", type=DIRECTORY, metavar="DIR", help="Where the files go.  [default: RUN_DIR/figures]")
def command(words: tuple[str, ...], out: Path | None) -> None:
    """Draw FIGUREs (fig3, fig7; all without one) from RUN_DIRs (the newest under results/runs without one).

    Each figure is a PNG, an SVG, the CSV that was drawn and a JSON that says where it came from.

    \b
    Examples:
      mkbench figures
      mkbench figures fig3
      mkbench figures fig3 fig7 results/runs/mine --out pictures
    """
    from mkbench.cli.console import print_line
    from mkbench.cli.runs import newest_run, split_figures
    from mkbench.figures.render import render_figures

    names, runs = split_figures(words)
    for picture in render_figures(runs or [newest_run()], names, out):
        print_line(str(picture))
