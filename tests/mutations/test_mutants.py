"""Every mutant of the protocol is caught, or stands here with the reason why nothing can catch it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from court import Court, Verdict
from gauntlet import CASES
from generate import Mutant, mutants
from workshop import Gauntlet

from mkbench.build.cpu import Variant
from mkbench.core.resources import kernels_dir

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("mutations")]


@dataclass(frozen=True, slots=True)
class Justified:
    """A mutant that may survive: what the edited line contains tells it from others of its rule and file."""

    file: str
    rule: str
    edited: str
    reason: str

    def covers(self, mutant: Mutant) -> bool:
        """Whether this is about `mutant`."""
        return (self.file, self.rule) == (mutant.file, mutant.rule) and self.edited in mutant.edited


JUSTIFIED = (
    Justified(
        "mk/reduction.h",
        "wait dropped",
        "return true;  // a look; the task waits",
        "The look only decides whether a block is lent; local() waits for the same flags itself.",
    ),
    Justified(
        "mk/all_gather.h",
        "scope gpu",
        "completes<Scope::gpu>(block",
        "All that add are on one GPU; the system-scope signal behind it passes on what they wrote to peers.",
    ),
    Justified(
        "gemm_ar.cu",
        "scope gpu",
        "if (completes<Scope::gpu>(block",
        "All that add are on one GPU; the system-scope signal behind it passes on what they wrote to peers.",
    ),
    Justified("moe_dispatch_gemm.cu", "scope gpu", "completes<Scope::gpu>(block", "As above."),
    Justified(
        "moe_dispatch_gemm.cu",
        "wait dropped",
        "return window >= map.windows(p.rank) || true;",
        "The look only decides whether a block is lent or helps; send() waits for the same flag itself, "
        "which all blocks work on before anything else.",
    ),
    Justified(
        "moe_dispatch_gemm.cu",
        "wait dropped",
        "return coming_of(what) == 0 || true;",
        "As above, in land(), which waits for sends. Every rank has a block that does those: if the "
        "partition is fixed none lands before they are claimed; else the block that planned, which sees "
        "that they can be done, does them before it waits for anything.",
    ),
    Justified(
        "mk/platform_cpu.h",
        "order relaxed",
        "fetch_add(n, std::memory_order_relaxed)",
        "All callers ask for relaxed.",
    ),
    Justified(
        "proxy/proxy.h",
        "wait dropped",
        "return packed.second >= 0;",
        "The acquire of the first word orders the second; the bit is there in case some platform does not.",
    ),
    Justified(
        "proxy/proxy.h",
        "order relaxed",
        "config_.epoch_word)).load(std::memory_order_relaxed)",
        "The command was acquired before, so the epoch is no older than its launch.",
    ),
    Justified(
        "proxy/proxy.cpp",
        "order relaxed",
        "drains_asked_.",
        "Commands are found through atomic words, whose order x86 keeps and ThreadSanitizer does not judge.",
    ),
    Justified(
        "proxy/proxy.cpp",
        "order halved",
        "drains_asked_.fetch_add",
        "As above; that half which only acquires has nothing to acquire.",
    ),
    Justified(
        "proxy/proxy.cpp",
        "order relaxed",
        "drains_done_.",
        "Hands over sources that the proxy has read, as the puts' flags and the end of the thread do.",
    ),
    Justified(
        "proxy/proxy.cpp",
        "order relaxed",
        "stopping_.",
        "Joining the thread orders all that it did.",
    ),
)


# At most some twenty seconds each on an idle machine.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kernel", "gauntlet", "variant", "seeds"),
    [
        *((kernel, "simulator", "release", 100) for kernel in CASES),
        *((kernel, "simulator", "tsan", 10) for kernel in CASES),
        ("gemm_ar", "threads", "release", 0),
        ("gemm_ar", "threads", "tsan", 0),
    ],
)
def test_the_kernels_as_they_are_survive(
    court: Court, tmp_path: Path, kernel: str, gauntlet: Gauntlet, variant: Variant, seeds: int
) -> None:
    assert court.judge(kernel, gauntlet, variant, {}, tmp_path, seeds, timeout_s=600) == Verdict(None)


@pytest.mark.timeout(3600)
def test_every_mutant_is_caught(court: Court, tmp_path: Path) -> None:
    tried = court.try_all(mutants(kernels_dir()), tmp_path)
    print(table(tried))
    surviving = [mutant for mutant, verdict in tried if verdict.detector is None]
    unjustified = [m for m in surviving if not any(entry.covers(m) for entry in JUSTIFIED)]
    assert [str(mutant) for mutant in unjustified] == []
    # Caught by the compiler is caught by nothing: the rule makes no sense there.
    assert [str(mutant) for mutant, verdict in tried if verdict.detector == "compiler"] == []
    stale = [entry for entry in JUSTIFIED if not any(entry.covers(mutant) for mutant in surviving)]
    assert stale == []


def table(tried: Sequence[tuple[Mutant, Verdict]]) -> str:
    """Return how many mutants of each rule each detector caught."""
    counts = Counter((mutant.rule, verdict.detector or "nothing") for mutant, verdict in tried)
    rules = sorted({rule for rule, _ in counts})
    total = Counter(verdict.detector or "nothing" for _, verdict in tried)
    detectors = [detector for detector, _ in total.most_common()]
    lines = [f"{'rule':22}" + "".join(f"{detector:>17}" for detector in detectors)]
    lines += [f"{rule:22}" + "".join(f"{counts[rule, d] or '.':>17}" for d in detectors) for rule in rules]
    return "\n".join(["", f"{len(tried)} mutants, and what caught them", *lines])
