import errno
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mkbench.core import store
from mkbench.core.config import load_config
from mkbench.core.errors import EnvironmentProblem, UsageError
from mkbench.core.measurement import Measurement
from mkbench.core.plan import Plan, make_plan
from mkbench.core.record import make_record
from mkbench.core.store import RunDirectory
from mkbench.core.toml import dump_toml


def records_of(plan: Plan, env: Any = None) -> list[dict[str, Any]]:
    return [make_record(point, Measurement("ok", (10.0,)), env or {}) for point in plan.points]


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_new_run_says_what_was_asked_and_where(tmp_path: Path, plan: Plan) -> None:
    run = RunDirectory.create(tmp_path / "a" / "b", plan)
    asked = load_config(run.path / "plan.toml")
    assert asked == plan.config
    assert make_plan(asked).points == plan.points
    env = json.loads((run.path / "env.json").read_text())
    assert env == run.env
    assert env.keys() == {"mkbench", "python", "system", "cpu", "cores", "compiler", "variables"}


def test_appended_records_come_back(tmp_path: Path, plan: Plan) -> None:
    run = RunDirectory.create(tmp_path / "run", plan)
    for record in records_of(plan):
        run.append(record)
    reopened = RunDirectory.open(tmp_path / "run")
    assert reopened.records() == records_of(plan)
    assert reopened.done_keys() == {point.key for point in plan.points}
    assert run.records_path.read_text().endswith("\n")


def test_a_last_line_cut_at_any_byte_is_dropped_and_the_run_goes_on(tmp_path: Path, plan: Plan) -> None:
    run = RunDirectory.create(tmp_path / "run", plan)
    records = records_of(plan)
    run.append(records[0])
    first = run.records_path.read_bytes()
    run.append(records[1])
    whole = run.records_path.read_bytes()
    for end in range(len(first), len(whole)):
        run.records_path.write_bytes(whole[:end])
        assert RunDirectory.open(run.path).records() == records[:1]
        resumed = RunDirectory.create(run.path, plan, resume=True)
        assert resumed.records_path.read_bytes() == first
        resumed.append(records[1])
        assert run.records_path.read_bytes() == whole


@given(st.data())
def test_any_cut_keeps_the_whole_lines(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.text(max_size=8), min_size=1, max_size=4))
    lines = [
        json.dumps({"key": f"{i}{text}", "status": "ok"}).encode() + b"\n" for i, text in enumerate(texts)
    ]
    cut = data.draw(st.integers(0, sum(map(len, lines))))
    run = RunDirectory(tmp_path_factory.mktemp("run"), {})
    run.records_path.write_bytes(b"".join(lines)[:cut])
    run.append({"key": "new", "status": "ok"})
    kept = [record["key"] for record in run.records()]
    ends = [sum(map(len, lines[: i + 1])) for i in range(len(lines))]
    assert kept == [f"{i}{text}" for i, text in enumerate(texts) if ends[i] <= cut] + ["new"]


def test_open_alone_changes_nothing(tmp_path: Path, plan: Plan) -> None:
    run = RunDirectory.create(tmp_path / "run", plan)
    run.records_path.write_bytes(b'{"key": "torn')
    before = snapshot(run.path)
    assert RunDirectory.open(run.path).records() == []
    assert snapshot(run.path) == before


def test_a_bad_line_in_the_middle_is_named(tmp_path: Path, plan: Plan) -> None:
    run = RunDirectory.create(tmp_path / "run", plan)
    run.records_path.write_text('{"key": "a", "status": "ok"}\nnonsense\n')
    with pytest.raises(EnvironmentProblem, match=r"records.jsonl line 2 is not a record"):
        run.records()


def test_hangs_and_failures_are_tried_again_and_count_once(tmp_path: Path, plan: Plan) -> None:
    run = RunDirectory.create(tmp_path / "run", plan)
    point = plan.points[0]
    for status in ("hang", "failed"):
        run.append(make_record(point, Measurement(status), {}))
        assert run.done_keys() == set()
    run.append(make_record(point, Measurement("wrong"), {}))
    assert run.done_keys() == {point.key}
    assert [record["status"] for record in run.records()] == ["wrong"]


def test_a_directory_with_results_needs_resume(tmp_path: Path, plan: Plan) -> None:
    RunDirectory.create(tmp_path, plan)
    before = snapshot(tmp_path)
    with pytest.raises(UsageError) as caught:
        RunDirectory.create(tmp_path, plan)
    assert "--resume" in (caught.value.hint or "")
    assert snapshot(tmp_path) == before


def test_resume_with_another_plan_names_the_setting(
    tmp_path: Path, plan: Plan, make_small_plan: Callable[..., Plan]
) -> None:
    RunDirectory.create(tmp_path, plan)
    before = snapshot(tmp_path)
    with pytest.raises(UsageError, match="another plan: seed is 7 there, 8 now"):
        RunDirectory.create(tmp_path, make_small_plan(seed=8), resume=True)
    with pytest.raises(UsageError, match="chunk_tiles is not set there, 2 now"):
        RunDirectory.create(tmp_path, make_small_plan(chunk_tiles=2), resume=True)
    assert snapshot(tmp_path) == before


def test_somebody_elses_directory_is_left_alone(tmp_path: Path, plan: Plan) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    for resume in (False, True):
        with pytest.raises(UsageError, match="holds no run"):
            RunDirectory.create(tmp_path, plan, resume=resume)
    with pytest.raises(UsageError, match="is a file"):
        RunDirectory.create(tmp_path / "thesis.tex", plan)
    with pytest.raises(UsageError, match="not a run directory"):
        RunDirectory.open(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_resume_starts_what_was_never_started(tmp_path: Path, plan: Plan) -> None:
    (tmp_path / "run").mkdir()
    run = RunDirectory.create(tmp_path / "run", plan, resume=True)
    assert (run.path / "plan.toml").is_file()


def test_resume_on_a_changed_machine_keeps_both_stamps(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunDirectory.create(tmp_path, plan)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    RunDirectory.create(tmp_path, plan, resume=True)
    stamps = sorted(file.name for file in tmp_path.glob("env*.json"))
    assert len(stamps) == 2
    assert stamps[1] == "env.json"


def test_a_full_disk_is_said_and_leaves_whole_lines(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(tmp_path, plan)
    records = records_of(plan)
    run.append(records[0])

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store.os, "fsync", no_space)
        with pytest.raises(EnvironmentProblem, match="No space left"):
            run.append(records[1])
    run.records_path.write_bytes(run.records_path.read_bytes()[:-5])
    run.append(records[1])
    assert run.records() == records[:2]


def test_a_record_must_be_plain_json(tmp_path: Path, plan: Plan) -> None:
    run = RunDirectory.create(tmp_path, plan)
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.append({"key": "a", "status": "ok", "samples_us": [float("nan")]})
    assert run.records() == []


values = st.one_of(st.text(), st.integers(-(2**53), 2**53), st.booleans(), st.floats(-1e9, 1e9))


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True), values | st.lists(st.text(), max_size=3), max_size=5
    )
)
def test_toml_round_trip(settings: dict[str, Any]) -> None:
    assert tomllib.loads(dump_toml(settings | {"nothing": None, "table": {"m": 1}})) == settings | {
        "table": {"m": 1}
    }


def test_default_directory_names_the_cluster() -> None:
    assert store.default_run_dir("1x8-h100").parts[:2] == ("results", "runs")
    assert store.default_run_dir("1x8-h100").name.endswith("Z-1x8-h100")


@pytest.mark.parametrize("name", ["plan.toml", "env.json"])
@pytest.mark.parametrize("damage", [b"{ [", b"\xff\xfe"])
def test_a_damaged_file_is_named(tmp_path: Path, plan: Plan, name: str, damage: bytes) -> None:
    RunDirectory.create(tmp_path / "run", plan)
    (tmp_path / "run" / name).write_bytes(damage)
    with pytest.raises(EnvironmentProblem, match=f"cannot read .*{name}") as caught:
        RunDirectory.create(tmp_path / "run", plan, resume=True)
    assert "restore" in (caught.value.hint or "")


def test_a_missing_stamp_is_named(tmp_path: Path, plan: Plan) -> None:
    RunDirectory.create(tmp_path / "run", plan)
    (tmp_path / "run" / "env.json").unlink()
    with pytest.raises(EnvironmentProblem, match=r"cannot read .*env\.json: No such file"):
        RunDirectory.open(tmp_path / "run")


def test_records_of_another_schema_are_refused(tmp_path: Path, plan: Plan) -> None:
    run = RunDirectory.create(tmp_path / "run", plan)
    run.append(records_of(plan)[0] | {"schema": 0})
    with pytest.raises(EnvironmentProblem, match="line 1 has schema 0, this mkbench reads 1"):
        run.records()


def test_one_process_at_a_time_writes_to_a_directory(tmp_path: Path, plan: Plan) -> None:
    path = tmp_path / "run"
    RunDirectory.create(path, plan)
    before = snapshot(path)
    # A lock is the process's own: the other writer has to be another process.
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(path / store.LOCK)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="another mkbench is writing"):
            RunDirectory.create(path, plan, resume=True)
        assert snapshot(path) == before
        assert holder.stdin is not None
        holder.stdin.close()
    RunDirectory.create(path, plan, resume=True)


HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
