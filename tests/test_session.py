from pathlib import Path
from typing import Any

import pytest

from mkbench import platforms
from mkbench.core.errors import EnvironmentProblem, HangError, PartialResults, UsageError, WrongResult
from mkbench.core.measurement import Check, Measurement
from mkbench.core.plan import Plan
from mkbench.core.store import RunDirectory
from mkbench.session import run_plan, verdict


def test_every_point_is_recorded_in_order_and_on_disk_before_it_is_told(
    tmp_path: Path, plan: Plan, stub_platform: Any
) -> None:
    run = RunDirectory.create(tmp_path, plan)
    told: list[str] = []

    def listen(record: dict[str, Any]) -> None:
        told.append(record["key"])
        assert RunDirectory.open(tmp_path).records()[-1] == record

    records = run_plan(plan, run, stub_platform(), listen)
    keys = [point.key for point in plan.points]
    assert told == [record["key"] for record in records] == keys
    assert verdict(records) is None


def test_a_platform_that_breaks_leaves_records_and_resume_does_the_rest(
    tmp_path: Path, plan: Plan, stub_platform: Any
) -> None:
    run = RunDirectory.create(tmp_path, plan)
    with pytest.raises(RuntimeError, match="on fire"):
        run_plan(plan, run, stub_platform(fail_after=2))
    resumed = RunDirectory.create(tmp_path, plan, resume=True)
    platform = stub_platform()
    records = run_plan(plan, resumed, platform)
    keys = [point.key for point in plan.points]
    assert platform.asked == keys[2:]
    assert [record["key"] for record in records] == keys


def test_an_interrupted_run_and_an_undisturbed_one_hold_the_same(
    tmp_path: Path, plan: Plan, stub_platform: Any
) -> None:
    whole = run_plan(plan, RunDirectory.create(tmp_path / "whole", plan), stub_platform())
    with pytest.raises(RuntimeError):
        run_plan(plan, RunDirectory.create(tmp_path / "cut", plan), stub_platform(fail_after=1))
    again = run_plan(plan, RunDirectory.create(tmp_path / "cut", plan, resume=True), stub_platform())
    assert again == whole


def test_a_platform_that_stops_early_is_an_error(tmp_path: Path, plan: Plan, stub_platform: Any) -> None:
    class Lazy(stub_platform):  # type: ignore[misc]
        def run(self, points: Any) -> Any:
            return super().run(points[:1])

    with pytest.raises(PartialResults, match="stopped after 1 of 5 points"):
        run_plan(plan, RunDirectory.create(tmp_path, plan), Lazy())


@pytest.mark.parametrize(
    ("statuses", "error", "text"),
    [
        (["failed", "wrong", "hang"], WrongResult, "rank 0 row 1"),
        (["failed", "hang"], HangError, "stuck"),
        (["oom", "failed"], PartialResults, "and 1 more"),
    ],
)
def test_the_gravest_failure_is_the_verdict(
    statuses: list[str], error: type, text: str, tmp_path: Path, plan: Plan, stub_platform: Any
) -> None:
    answers = {
        point.key: Measurement(
            status, message="stuck", check=Check(4, 1, "rank 0 row 1") if status == "wrong" else None
        )
        for point, status in zip(plan.points, statuses, strict=False)
    }
    records = run_plan(plan, RunDirectory.create(tmp_path, plan), stub_platform(answers))
    assert len(records) == len(plan.points)
    found = verdict(records)
    assert type(found) is error
    assert text in str(found)


def test_platforms_by_name() -> None:
    with pytest.raises(UsageError, match="unknown platform 'hots'; did you mean 'host'"):
        platforms.platform("hots")


def test_a_platform_that_is_not_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match="cuda platform is not built into this version"):
        platforms.platform("cuda")
