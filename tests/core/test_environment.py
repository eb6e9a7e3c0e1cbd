import subprocess
import sys

import pytest

from mkbench.core import environment


def test_the_stamp_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "hunter2")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    stamp = environment.stamp()
    assert "hunter2" not in str(stamp)
    assert stamp["variables"]["NCCL_NVLS_ENABLE"] == "0"
    assert stamp == environment.stamp()


def test_the_digest_follows_the_stamp() -> None:
    assert environment.digest({"a": 1}) == environment.digest({"a": 1})
    assert environment.digest({"a": 1}) != environment.digest({"a": 2})
    assert len(environment.digest({})) == 12


def test_a_compiler_that_is_missing() -> None:
    assert environment.compiler_version("no-such-compiler") is None


@pytest.mark.parametrize(
    ("gpu", "built", "expected"), [(False, True, "sim"), (True, False, "sim"), (True, True, "cuda")]
)
def test_default_platform(gpu: bool, built: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "gpu_visible", lambda: gpu)
    monkeypatch.setattr(environment, "find_spec", lambda name: object() if built else None)
    assert environment.default_platform() == expected


def test_a_hidden_gpu_is_not_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not environment.gpu_visible()


def test_memory_is_a_sensible_number() -> None:
    assert 1 << 24 < environment.memory_available_bytes() < 1 << 50


def test_core_imports_nothing_heavy() -> None:
    """The driver and core stay free of GPU, MPI and table packages; `import mkbench` of everything."""
    code = (
        "import sys, mkbench; assert not {'pydantic', 'numpy', 'click'} & sys.modules.keys();"
        "import mkbench.session, mkbench.platforms;"
        "print(sorted({'cupy', 'mpi4py', 'pandas', 'matplotlib', 'rich', 'click'} & sys.modules.keys()))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
