import io

import pytest
from rich.console import Console

from mkbench.cli import console
from mkbench.core.measurement import Measurement

RECORD = {
    "kernel": "gemm_ar",
    "size": 2048,
    "shape": {"m": 2048, "n": 2048, "k": 256},
    "policy": "static",
    "comm_sms": 16,
    "status": "ok",
    "message": None,
    "check": None,
    "latency_us": {"median": 52.6, "ci_low": 52.6, "ci_high": 52.6, "n": 1},
}


@pytest.fixture
def terminal(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=80, highlight=False)
    monkeypatch.setattr(console, "console", lambda: screen)
    return screen.file


def test_a_terminal_gets_a_bar_with_the_time_left(terminal):
    with console.reporter(total=5, done=3) as reporter:
        reporter.on_record(RECORD)
        reporter.on_record(RECORD)
    shown = terminal.getvalue()
    assert "gemm_ar 2048 static 16" in shown
    assert "2/2" in shown  # what was there before took no time and does not count
    assert "left" in shown
    assert "\x1b" in shown


def test_a_failure_stays_on_the_terminal_above_the_bar(terminal):
    with console.reporter(total=1) as reporter:
        reporter.on_record(RECORD | {"status": "hang", "latency_us": None, "message": "rank 3 waits"})
    assert "gemm_ar 2048 static 16: hang: rank 3 waits" in terminal.getvalue()


def test_a_pipe_gets_one_line_a_point(capsys):
    with console.reporter(total=12, done=3) as reporter:
        reporter.on_record(RECORD)
    assert capsys.readouterr().out == "[ 4/12] gemm_ar 2048 static 16: 52.6 us\n"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"comm_sms": None, "policy": "adaptive"}, "gemm_ar 2048 adaptive"),
        ({"size": None}, "gemm_ar m=2048 n=2048 k=256 static 16"),
    ],
)
def test_name_of_a_point(change, name):
    assert console.point_name(RECORD | change) == name


def test_a_wrong_result_shows_its_first_element_and_no_time():
    check = {"elements": 4, "mismatches": 1, "first": "rank 1 row 3 column 77"}
    assert console.outcome(RECORD | {"status": "wrong", "latency_us": None, "check": check}) == (
        "wrong: rank 1 row 3 column 77"
    )


def test_numbers_stay_whole_on_a_narrow_terminal(terminal, capsys):
    console.print_table(("what", "value"), [("x" * 60, "123.456 us" * 5)], right=("value",))
    assert "123.456 us" * 5 in capsys.readouterr().out


def test_a_bound_that_is_not_known_takes_no_column(fake, mkbench):
    words = ("sweep", "--platform", "host", "--sizes", "512", "--comm-sms", "1,2")
    fake.behave = lambda point: Measurement("ok", samples_us=(float(point.comm_sms or 3),) * 5)
    shown = mkbench(*words).stdout
    assert "bound" not in shown
    assert "measured on this machine's CPU" in shown
