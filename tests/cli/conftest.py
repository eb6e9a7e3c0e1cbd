"""A platform that measures nothing and answers at once, so that these tests see the command line alone."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mkbench.cli import app
from mkbench.core.measurement import Check, Measurement
from mkbench.core.plan import Plan, Point


class FakePlatform:
    """Its latency is least at 8 communication SMs; `behave` may answer for a point instead, or raise."""

    name = "sim"

    def __init__(self) -> None:
        self.behave: Callable[[Point], Measurement | None] = lambda point: None
        self.measured: list[str] = []

    def check(self, plan: Plan) -> None:
        pass

    def run(self, points: Sequence[Point]) -> Iterator[Measurement]:
        for point in points:
            measurement = self.behave(point) or good(point)
            self.measured.append(point.key)
            yield measurement


def good(point: Point) -> Measurement:
    comm_sms = 8 if point.comm_sms is None else point.comm_sms
    latency = (point.lower_bound_us or 50.0) * (1.5 + abs(comm_sms - 8) / 4)
    check = Check(elements=point.shape.m * point.shape.n, mismatches=0) if point.data else None
    return Measurement(
        "ok",
        samples_us=(latency,) * point.samples,
        check=check,
        network_bytes=point.network_bytes,
        commands=4,
        source_hash="0" * 12,
    )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakePlatform:
    """Every platform is the fake one, and the current folder is empty."""
    platform = FakePlatform()
    monkeypatch.setattr("mkbench.platforms.platform", lambda name: platform)
    monkeypatch.chdir(tmp_path)
    return platform


@pytest.fixture
def mkbench() -> Callable[..., Result]:
    """`mkbench("list", "kernels")`: the command in this process, with its output and exit code."""

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, list(words), prog_name="mkbench")

    return run
