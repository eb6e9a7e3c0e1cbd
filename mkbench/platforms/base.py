"""What every platform offers the driver loop."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from mkbench.core.measurement import Measurement
from mkbench.core.plan import Plan, Point


class Platform(Protocol):
    """A way to run kernels: a GPU, processor cores, or the simulator."""

    name: str

    def check(self, plan: Plan) -> None:
        """Refuse what cannot run here, before anything is written.

        Raises EnvironmentProblem if something is missing, UsageError if the plan makes no sense here.
        """
        ...

    def run(self, points: Sequence[Point]) -> Iterator[Measurement]:
        """Yield one measurement a point, in order, as each finishes.

        A point that fails is a measurement with its status, and the next point goes on.
        """
        ...
