from __future__ import annotations

import re

import pytest

from mkbench.build.disassembly import resources, sass
from mkbench.build.nvrtc import compile_cubin
from mkbench.core.errors import EnvironmentProblem
from mkbench.platforms.residency import KERNEL, Attendance, require_all


def test_all_there():
    require_all([Attendance(64, 64, 64), Attendance(64, 64, 64)], [4, 5])


def test_the_rank_that_lacks_blocks_is_named_even_if_others_met_nobody():
    found = [Attendance(64, 64, 0), Attendance(64, 60, 0)]
    with pytest.raises(EnvironmentProblem, match="rank 5: 60 of 64 blocks became resident"):
        require_all(found, [4, 5])


def test_coming_too_late_is_told_apart():
    with pytest.raises(EnvironmentProblem, match="rank 4: 63 of 64 blocks saw the others"):
        require_all([Attendance(64, 64, 63), Attendance(64, 64, 64)], [4, 5])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_the_kernel_only_stores_to_and_loads_from_what_ranks_share(arch: str):
    cubin = compile_cubin(KERNEL, arch)
    (code,) = sass(cubin).values()
    assert sum("STG.E.64.STRONG.SYS" in line for line in code) == 2
    assert any("LDG.E.64.STRONG.SYS" in line for line in code)
    # The counters of a rank are in its own memory, so the GPU's scope does.
    atomics = [line for line in code if re.search(r"\b(?:ATOMG?|REDG?)\.", line)]
    assert atomics
    assert not [line for line in atomics if ".SYS" in line]
    assert resources(cubin)["residency_audit"].local == 0
