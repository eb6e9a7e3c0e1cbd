"""The command line: `mkbench COMMAND`.

This module and every command module import click and nothing else at the top, so that `--help` stays as
quick as click itself; what a command needs is imported when it runs.
"""

import click

import mkbench
from mkbench.cli.lazy import LazyGroup

# In the order of use, with the line that `mkbench --help` shows: no command module is imported for it.
COMMANDS = {
    "sweep": "Measure static partitions against the adaptive controller.",
    "run": "Measure one configuration and check every element.",
    "figures": "Draw Figures 3 and 7 from a run directory.",
    "list": "Show kernels, clusters, hardware, policies, and so on.",
    "doctor": "Show what this machine has, and how to get what is missing.",
    "export": "Write the records of a run as CSV or Parquet.",
}

EPILOG = """\b
Start here:
  mkbench doctor
  mkbench sweep gemm_ar --cluster 1x8-h100 --sizes 2048,4096
  mkbench run gemm_ar --size 512 --comm-sms 8

\b
Exit codes:
  0 ok          2 usage         4 timeout or hang    7 partial results
  1 failure     3 environment   5 wrong result       130 interrupted
  70 a bug in mkbench
"""


@click.group(
    cls=LazyGroup,
    package="mkbench.cli",
    commands_help=COMMANDS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(mkbench.__version__, prog_name="mkbench")
def app() -> None:
    """Benchmark kernels that compute and communicate at once.

    One persistent kernel gives some streaming multiprocessors (SMs) to computation and some to moving
    tiles. mkbench measures how the split should be: fixed by hand, or moved by an on-GPU controller.
    Without a GPU it simulates the machine, or runs the same kernel source as CPU processes.
    """


def main() -> None:
    """Run the command line and exit with its code."""
    app(prog_name="mkbench")
