from pathlib import Path
from typing import Any

import click

from mkbench.cli.options import DIRECTORY, HOW, WHERE, options


@click.command()
@click.argument("kernel")
@click.option("--size", metavar="N", help="Problem size, as in 512 or 4K.")
@click.option("--shape", metavar="m=..,n=..,k=..", help="The shape in full, in place of --size.")
@click.option("--comm-sms", type=int, metavar="N", help="Communication SMs; adaptive only starts with them.")
@click.option("--policy", metavar="NAME", help="static (the default with --comm-sms) or adaptive.")
@options(WHERE, HOW)
@click.option("--out", type=DIRECTORY, metavar="DIR", help="Keep the record in a run directory.")
def command(
    kernel: str,
    size: str | None,
    shape: str | None,
    comm_sms: int | None,
    policy: str | None,
    out: Path | None,
    config_file: Path | None,
    **settings: Any,
) -> None:
    """Measure one configuration of KERNEL with real data and check every element of its result.

    Without a size or a shape it is a small one.

    \b
    Examples:
      mkbench run gemm_ar --size 512 --comm-sms 8
      mkbench run gemm_ar --shape m=300,n=520,k=64 --policy adaptive
      mkbench run gemm_ar --platform host --nodes 2 --ranks-per-node 2

    Exits with 5 if an element is wrong (and names it), with 4 if the kernel hangs.
    """
    from mkbench.cli.measure import conclude, measure_one
    from mkbench.cli.options import make_config, parse_shape
    from mkbench.cli.tables import print_record
    from mkbench.core.plan import make_plan
    from mkbench.core.workloads import workload

    policy = policy or ("adaptive" if comm_sms is None else "static")
    settings["start_comm_sms" if policy == "adaptive" else "comm_sms"] = comm_sms
    extents = parse_shape(shape)
    if not (size or shape or config_file):
        small = workload(kernel).small
        size, extents = (str(small), None) if isinstance(small, int) else (None, dict(small))
    config = make_config(
        config_file,
        kernels=(kernel,),
        sizes=size,
        shape=extents,
        policies=policy,
        data=True,
        **settings,
    )
    record = measure_one(make_plan(config), out)
    if record is not None:
        print_record(record)
        conclude([record], kept=out is not None)
