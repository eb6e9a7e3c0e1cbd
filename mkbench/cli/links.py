"""How the GPUs of a machine reach each other, from the matrices of `nvidia-smi topo`."""

import re
from collections import Counter
from collections.abc import Mapping

from mkbench.cli.finding import Finding

NEIGHBOURS = "several GPUs a node"

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
#: What `nvidia-smi topo -p2p` says instead of OK.
_REASONS = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "not over this topology",
    "NS": "not supported",
    "DR": "disabled in the driver",
    "U": "unknown",
}


def links(topology: str, peer_access: str) -> list[Finding]:
    """Findings from the output of `topo -m` and of `topo -p2p r`, on a machine with several GPUs."""
    return [_nvlink(pairs(topology)), _peer_access(pairs(peer_access))]


def pairs(matrix: str) -> dict[tuple[int, int], str]:
    """The entry for every two GPUs (i < j) of a matrix; columns of other devices are left out."""
    rows = [_STYLE.sub("", line).split() for line in matrix.splitlines()]
    header = next((row for row in rows if row[:1] == ["GPU0"] and row[1:2] != ["X"]), [])
    count = sum(bool(re.fullmatch(r"GPU\d+", word)) for word in header)
    found: dict[tuple[int, int], str] = {}
    for row in rows:
        match = re.fullmatch(r"GPU(\d+)", row[0]) if row and row is not header else None
        if match and len(row) > count:
            i = int(match[1])
            found |= {(i, j): row[1 + j] for j in range(i + 1, count)}
    return found


def _nvlink(kinds: Mapping[tuple[int, int], str]) -> Finding:
    if not kinds:
        return Finding("NVLink", True, "nvidia-smi topo -m does not tell", NEIGHBOURS)
    counts = Counter(kinds.values())
    if len(counts) == 1:
        return Finding("NVLink", True, f"all pairs {next(iter(counts))}", NEIGHBOURS)
    return Finding("NVLink", True, ", ".join(f"{n} pairs {kind}" for kind, n in counts.items()), NEIGHBOURS)


def _peer_access(states: Mapping[tuple[int, int], str]) -> Finding:
    if not states:
        return Finding("peer access", True, "nvidia-smi topo -p2p does not tell", NEIGHBOURS)
    for (i, j), state in states.items():
        if state != "OK":
            found = f"GPU {i} and GPU {j}: {_REASONS.get(state, state)}"
            fix = "use one GPU a node (--ranks-per-node 1), or only GPUs that reach each other"
            return Finding("peer access", False, found, NEIGHBOURS, fix)
    return Finding("peer access", True, "all pairs", NEIGHBOURS)
