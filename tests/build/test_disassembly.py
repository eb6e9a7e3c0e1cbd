from __future__ import annotations

import pytest

from mkbench.build.disassembly import sass
from mkbench.core.errors import EnvironmentProblem


def test_missing_tools_name_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda import pathfinder

    monkeypatch.setattr(pathfinder, "find_nvidia_binary_utility", lambda name: None)
    with pytest.raises(EnvironmentProblem, match="cuobjdump") as caught:
        sass(b"")
    assert "pip install" in str(caught.value.hint)


def test_what_is_no_cubin_is_refused() -> None:
    with pytest.raises(EnvironmentProblem, match="cuobjdump failed"):
        sass(b"no cubin")
