from pathlib import Path
from typing import Any

import click

from mkbench.cli.options import DIRECTORY, HOW, WHERE, options


@click.command()
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@click.option("--sizes", metavar="LIST", help="Of every kernel: 2048,4K.  [default: each kernel's own]")
@click.option("--comm-sms", metavar="LIST", help="Communication SMs of static: 2:64:2 or 4,8,16.")
@click.option("--policy", "policies", metavar="LIST", help="As in static,adaptive.")
@options(WHERE, HOW)
@click.option("--out", type=DIRECTORY, metavar="DIR", help="Run directory.  [default: under results/runs]")
@click.option("--resume", is_flag=True, help="Measure what is missing in --out (else in the newest run).")
@click.option("--dry-run", is_flag=True, help="Show every point and its lower bound; write nothing.")
def command(kernels: tuple[str, ...], out: Path | None, resume: bool, dry_run: bool, **settings: Any) -> None:
    """Measure every static partition and the adaptive controller, then draw the figures.

    Without KERNEL all kernels are swept, each at sizes of its own (see `mkbench list kernels`). Every point
    is recorded as soon as it is measured, so a sweep that was stopped goes on with --resume.

    \b
    Examples:
      mkbench sweep
      mkbench sweep gemm_ar --sizes 2048,4096
      mkbench sweep moe_dispatch_gemm --sizes 32K --skew 0,0.5,1
      mkbench sweep gemm_ar --cluster 2x8-h200-ib --sizes 8K --comm-sms 4:32:4
      mkbench sweep gemm_ar --sizes 2048 --dry-run
      mkbench sweep --config sweep.toml --out results/runs/mine --resume
    """
    from mkbench.cli.measure import conclude, measure
    from mkbench.cli.options import make_config
    from mkbench.cli.pictures import print_pictures
    from mkbench.cli.runs import newest_run
    from mkbench.cli.tables import print_plan, print_results
    from mkbench.core.plan import make_plan
    from mkbench.core.store import default_run_dir

    plan = make_plan(make_config(kernels=kernels, **settings))
    if dry_run:
        print_plan(plan)
        return
    path = out or (newest_run() if resume else default_run_dir(plan.cluster.name))
    records = measure(plan, path, resume=resume)
    if records is not None:
        print_results(records)
        print_pictures(path)
        conclude(records)
