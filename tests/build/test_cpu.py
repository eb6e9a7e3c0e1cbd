from __future__ import annotations

import ctypes
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mkbench.build.cache import Cache
from mkbench.build.cpu import build_library, find_compiler
from mkbench.build.errors import BuildFailed, first_error
from mkbench.core.errors import EnvironmentProblem, UsageError

Compiled = Callable[[], list[str]]
Write = Callable[[Path, str], None]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiled:
    """Makes $CXX a wrapper that notes each compilation; the call returns the new notes."""
    log = tmp_path / "compiled"
    log.touch()
    wrapper = tmp_path / "counting-g++"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >>{log}\nexec g++ "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(wrapper))

    def take() -> list[str]:
        lines = [line for line in log.read_text().splitlines() if " -o " in line]
        log.write_text("")
        return lines

    return take


def result(library: Path, a: int = 2, b: int = 3) -> int:
    value: int = ctypes.CDLL(str(library)).result(a, b)
    return value


def test_builds_a_library_that_works(sources: Path, cache: Cache) -> None:
    assert result(build_library("toy", sources=sources, cache=cache)) == 105


def test_second_build_compiles_nothing(sources: Path, cache: Cache, compiled: Compiled) -> None:
    first = build_library("toy", sources=sources, cache=cache)
    assert len(compiled()) == 4  # three units and the link
    assert build_library("toy", sources=sources, cache=cache) == first
    assert compiled() == []


def test_edit_compiles_only_what_it_touches(
    sources: Path, cache: Cache, compiled: Compiled, write: Write
) -> None:
    first = build_library("toy", sources=sources, cache=cache)
    compiled()
    write(sources / "mk" / "add.h", (sources / "mk" / "add.h").read_text().replace("a + b", "a - b"))
    second = build_library("toy", sources=sources, cache=cache)
    lines = compiled()
    assert len(lines) == 2
    assert sum("toy.cu" in line for line in lines) == 1
    assert (result(first), result(second)) == (105, 99)


def test_a_copy_elsewhere_hits_the_cache(
    sources: Path, cache: Cache, compiled: Compiled, tmp_path: Path
) -> None:
    first = build_library("toy", sources=sources, cache=cache)
    compiled()
    shutil.copytree(sources, tmp_path / "copy")
    assert build_library("toy", sources=tmp_path / "copy", cache=cache) == first
    assert compiled() == []


def test_defines_reach_the_code_and_the_key(sources: Path, cache: Cache, write: Write) -> None:
    write(sources / "sim" / "helper.cpp", "int helper() { return MK_HELP; }\n")
    built = {
        value: build_library("toy", defines={"MK_HELP": value}, sources=sources, cache=cache)
        for value in (7, 8)
    }
    assert {value: result(path, 0, 0) for value, path in built.items()} == {7: 7, 8: 8}


def test_tsan_instruments_all_but_the_simulator(
    sources: Path, cache: Cache, compiled: Compiled, write: Write
) -> None:
    write(sources / "sim" / "helper.cpp", "int shared; int helper() { return shared = MK_TSAN; }\n")
    write(sources / "host" / "apart.cpp", "int kept; int apart() { return kept = MK_TSAN; }\n")
    build_library("toy", variant="tsan", sources=sources, cache=cache)
    compiled()
    instrumented = {}
    for file in (cache.root / "entries").rglob("*.o"):
        symbols = subprocess.run(["nm", "-C", file], capture_output=True, text=True, check=True).stdout
        name = next(name for name in ("result", "helper", "apart") if f" T {name}" in symbols)
        instrumented[name] = "__tsan" in symbols
    assert instrumented == {"result": True, "helper": False, "apart": True}


def test_variants_do_not_share_results(sources: Path, cache: Cache) -> None:
    release = build_library("toy", sources=sources, cache=cache)
    assert build_library("toy", variant="tsan", sources=sources, cache=cache) != release


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("toy.cu", "int f() { return missing; }\n", "toy.cu:1:18: error: 'missing' was not declared"),
        ("host/apart.cpp", "int f(int unused) { return 0; }\n", "unused"),
        (
            "toy.cu",
            'int missing();\nextern "C" int f() { return missing(); }\n',
            "undefined reference to `missing()'",
        ),
    ],
    ids=["error", "warning", "link"],
)
def test_refused_source_names_the_error_and_the_log(
    sources: Path, cache: Cache, file: str, text: str, expected: str, write: Write
) -> None:
    write(sources / file, text)
    with pytest.raises(BuildFailed) as caught:
        build_library("toy", sources=sources, cache=cache)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
    assert expected in caught.value.log_path.read_text()
    assert str(caught.value.log_path) in str(caught.value.hint)


def test_missing_compiler_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EnvironmentProblem, match="no-such-compiler") as caught:
        find_compiler()
    assert "apt-get install g++" in str(caught.value.hint)


def test_compiler_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(EnvironmentProblem, match="does not run"):
        find_compiler()


def test_compiler_may_carry_arguments(
    monkeypatch: pytest.MonkeyPatch, sources: Path, cache: Cache, write: Write
) -> None:
    monkeypatch.setenv("CXX", "env g++ -DMK_HELP=5")
    write(sources / "sim" / "helper.cpp", "int helper() { return MK_HELP; }\n")
    assert result(build_library("toy", sources=sources, cache=cache), 0, 0) == 5


def test_unknown_kernel(sources: Path, cache: Cache) -> None:
    with pytest.raises(UsageError):
        build_library("nosuch", sources=sources, cache=cache)
    assert not cache.root.exists()


def test_first_error_skips_what_comes_before_it() -> None:
    output = "In file included from a.h:1,\n    from b.cu:2:\nc.h:3:4: error: no such thing\n   3 | x\n"
    assert first_error(output) == "c.h:3:4: error: no such thing"
    assert first_error("only words\n") == "only words"
    assert first_error("") == "the compiler said nothing"
