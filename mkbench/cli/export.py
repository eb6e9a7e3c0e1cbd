from pathlib import Path

import click

from mkbench.cli.options import DIRECTORY, FILE


@click.command()
@click.argument("run_dir", type=DIRECTORY)
@click.option("--format", "kind", type=click.Choice(["csv", "parquet"]), default="csv", show_default=True)
@click.option("-o", "--output", type=FILE, help="The file to write.  [default: in RUN_DIR]")
def command(run_dir: Path, kind: str, output: Path | None) -> None:
    """Write the records of RUN_DIR as one table, a row a record.

    \b
    Examples:
      mkbench export results/runs/mine --format csv
      mkbench export results/runs/mine --format parquet -o mine.parquet
    """
    from mkbench.cli.console import print_line
    from mkbench.cli.tabular import write_table

    path = output or run_dir / f"records.{kind}"
    write_table(run_dir, kind, path)
    print_line(str(path))
