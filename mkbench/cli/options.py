"""The options that say what to measure and where, and how they become a SweepConfig."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mkbench.core.config import SweepConfig

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

DIRECTORY = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)

WHERE: tuple[Decorator, ...] = (
    click.option("--platform", metavar="NAME", help="sim, host, cuda or auto.  [default: auto]"),
    click.option("--cluster", metavar="NAME", help="Cluster profile; see `mkbench list clusters`."),
    click.option("--nodes", type=int, metavar="N", help="Nodes, in place of the cluster's own number."),
    click.option("--ranks-per-node", type=int, metavar="N", help="Ranks that share NVLink."),
    click.option("--ranks-per-gpu", type=int, metavar="N", help="Ranks that share a GPU (virtual cluster)."),
    click.option("--transport", metavar="NAME", help="Between nodes: see `mkbench list transports`."),
    click.option("--network-memory", metavar="NAME", help="Network buffers of cuda: device or host."),
    click.option("--pace", metavar="RATES", help="GB/s a GPU, as in nvlink=450,network=50."),
)

HOW: tuple[Decorator, ...] = (
    click.option("--skew", metavar="LIST", help="How uneven MoE routing is: Zipf exponents, as in 0,0.5,1."),
    click.option("--reduction", metavar="LIST", help="ordered, or atomic: results differ in last bits."),
    click.option("--samples", type=int, metavar="N", help="Most samples of one point."),
    click.option("--seed", type=int, metavar="N", help="Everything random follows from it."),
    click.option("--deadline", type=float, metavar="SECONDS", help="A point without progress ends after it."),
    click.option(
        "--config",
        "config_file",
        type=FILE,
        metavar="FILE.toml",
        help="Settings; an option wins over the file.",
    ),
)


def options(*groups: tuple[Decorator, ...]) -> Decorator:
    """Put all options of `groups` on a command, in the order in which its help shows them."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed([option for group in groups for option in group]):
            function = option(function)
        return function

    return decorate


def make_config(config_file: Path | None = None, **settings: Any) -> SweepConfig:
    """The configuration: defaults, then the file, then `settings`, of which None means not given.

    Raises UsageError.
    """
    from mkbench.core.config import load_config

    settings["deadline_s"] = settings.pop("deadline", None)
    return load_config(config_file, settings)


def parse_shape(text: str | None) -> dict[str, int] | None:
    """ "m=4096,n=4096,k=512" as extents by name. Raises UsageError that shows the form."""
    from mkbench.core.errors import UsageError
    from mkbench.core.units import parse_size

    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise UsageError(f"shape {text!r} is malformed", hint="write m=4096,n=4096,k=512")
    names = [name.strip() for name, _, _ in pairs]
    if len(set(names)) < len(names):
        raise UsageError(f"shape {text!r} gives a dimension twice", hint="write m=4096,n=4096,k=512")
    # Zero is no size, but an extent may be one: the workload knows which.
    return {name.strip(): int(e) if e.strip() == "0" else parse_size(e) for name, _, e in pairs}
