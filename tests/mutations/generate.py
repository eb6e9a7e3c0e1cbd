"""Mutants of the readiness protocol, made from the sources by rules.

A rule knows what a signal, a wait, an order, a scope, an epoch or a count looks like, not where one is: what
somebody adds to the kernel tomorrow is mutated without being listed anywhere. Left out is what no test on a
CPU can see: sync() of a block, which has one thread there, and the CUDA side, whose machine code is checked
on its own. The controller is left out too: it steers, and what it gets wrong costs time only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SHARED = ("gemm_ar", "ring_attention")
"""What stands for all kernels where a mutant is of what they share: they use it in different ways."""

SOURCES = (
    # First those that are tried on threads, where a lost signal costs a real time limit.
    "proxy/proxy.cpp",
    "proxy/transport_shm.h",
    "proxy/transport_tcp.h",
    "proxy/connection.h",
    "proxy/staged.h",
    "proxy/copy_engine.h",
    "ag_gemm.cu",
    "gemm_ar.cu",
    "gemm_rs.cu",
    "moe_dispatch_gemm.cu",
    "ring_attention.cu",
    "mk/all_gather.h",
    "mk/reduction.h",
    "mk/flags.h",
    "mk/command_queue.h",
    "mk/communication.h",
    "mk/tiles.h",
    "mk/platform_cpu.h",
    "proxy/proxy.h",
    "proxy/put.h",
    "proxy/proxy_sim.cpp",
    "proxy/transport_sim.h",
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One edit of one file: characters `start` to `end` are `replacement` instead of `original`."""

    file: str
    line: int
    rule: str
    original: str
    replacement: str
    start: int
    end: int
    before: str
    after: str
    """What stands before and behind the edit on its lines."""

    def apply(self, text: str) -> str:
        """Return the file's text with the edit."""
        return text[: self.start] + self.replacement + text[self.end :]

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels to try it on; those behind the first only if it survives that."""
        if self.file.endswith(".cu"):
            return (Path(self.file).stem,)
        if self.file == "mk/all_gather.h":
            return "ag_gemm", "ring_attention"
        return SHARED[1:] if "_each" in self.edited else SHARED

    @property
    def edited(self) -> str:
        """The line as the edit leaves it, or its first line if it had several."""
        return (self.before + self.replacement + self.after).strip()

    def __str__(self) -> str:
        short = " ".join(self.original.split())
        short = short if len(short) < 90 else short[:87] + "..."
        return f"{self.file}:{self.line} {self.rule}: {short} -> {self.replacement[-60:]}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Every match of `pattern` is replaced by each of `replacements`.

    With `call` the pattern ends with an opening bracket, and what is replaced extends to the closing one.
    """

    name: str
    pattern: str
    replacements: tuple[str | Callable[[str], str], ...]
    call: bool = False

    def edits(self, code: str) -> Iterator[tuple[int, int, str]]:
        """Yield start, end and replacement for `code`, which has neither comments nor macros."""
        for match in re.finditer(self.pattern, code):
            end = _closing_bracket(code, match.end() - 1) if self.call else match.end()
            if self.call and _is_definition(code, end):
                continue
            for replacement in self.replacements:
                if callable(replacement):
                    yield match.start(), end, replacement(code[match.start() : end])
                else:
                    yield match.start(), end, match.expand(replacement)


def _calls(*names: str) -> str:
    return rf"(?<![\w.>])(?:{'|'.join(names)})(?:<[^;()]*>)?\("


def _last_argument(suffix: str) -> Callable[[str], str]:
    return lambda call: f"{call[:-1]} {suffix})"


def _first_argument(suffix: str) -> Callable[[str], str]:
    def replaced(call: str) -> str:
        comma = call.index(",")
        return f"{call[:comma]} {suffix}{call[comma:]}"

    return replaced


def _count_of_second_argument(call: str) -> str:
    return f"({call.split(',')[1].strip()}).count"


_SIGNALS = _calls(
    "signal", "signal_each", "store", "store_each", "release_flag", "set_flag", "post_to_wire",
    "say", "say_finished", "say_gathered", "told_window", "written",
)  # fmt: skip
_WAITS = _calls("wait_all", "reached_all", "poll")
_ORDER, _MEMORY_ORDER = r"(?<!case )\bOrder::", r"\bstd::memory_order_"
_WEAKENED = r"(?:release|acquire|acq_rel)\b"
_HALVES = ("std::memory_order_acquire", "std::memory_order_release")
RULES = (
    # What tells another block, rank or the proxy.
    Rule("signal dropped", _SIGNALS, ("void()",), call=True),
    Rule("signal dropped", r"\bkernel\.say_finished\(", ("void()",), call=True),
    Rule("signal dropped", r"\bstd::atomic_ref<u64>\([^;]*?\)\.store\(", ("void()",), call=True),
    Rule("signal dropped", r"(?<!\w)\w+_\.store\(", ("void()",), call=True),
    Rule("signal dropped", r"\b(?:queue|puts_|departing_)\.push\(", ("true",), call=True),
    Rule("signal dropped", r"\b(?:transport_|wire_)\.post\(", ("true",), call=True),
    Rule("signal dropped", r"(?<![\w.:])(?:send|give_credits)\(", ("true",), call=True),
    Rule("signal dropped", r"\bengine_\.write\(|(?<!\w)deliver\(", ("true",), call=True),
    Rule("signal dropped", r"\blanding\.land\(", ("void()",), call=True),
    # What keeps a block from going on.
    Rule("wait dropped", _WAITS, ("true",), call=True),
    Rule("wait dropped", _calls("reached"), (_count_of_second_argument,), call=True),
    Rule("wait dropped", r"\btasks\.can_receive\(", ("true",), call=True),
    Rule("wait dropped", r"\bseen >= at_least\b", ("true",)),
    Rule("wait dropped", r">> 63 == lap\b", (">= 0",)),
    Rule("wait dropped", r"\bposition >= u64\(depth\)", ("false",)),
    Rule("wait dropped", r"\b\w+\.is_full\(", ("false",), call=True),
    Rule("wait dropped", r"\b\w+\.(?:has_room|is_empty)\(", ("true",), call=True),
    Rule("wait dropped", r"\bengine_\.finished\(", ("~u64(0)",), call=True),
    Rule("wait dropped", r"\bat\(\w+\)\.step <= finished\b", ("true",)),
    Rule("wait one short", r"\.step <= finished\b", (r"\g<0> + 1",)),
    Rule("wait one short", r">= u64\(depth\)", (r"\g<0> + 1",)),
    Rule("wait one short", r"< (?:taken|ticket)\b", (r"\g<0> - 1",)),
    Rule("wait one epoch short", r"(?:>=|<) at_least\b", (r"\g<0> - (1ull << 32)",)),
    # What an access orders, and for whom.
    Rule("scope gpu", r"\bScope::system\b", ("Scope::gpu",)),
    Rule("order relaxed", _ORDER + _WEAKENED, ("Order::relaxed",)),
    Rule("order halved", _ORDER + r"acq_rel\b", ("Order::acquire", "Order::release")),
    Rule("order relaxed", r"<order, ", ("<Order::relaxed, ",)),
    Rule("order relaxed", _MEMORY_ORDER + _WEAKENED, ("std::memory_order_relaxed",)),
    Rule("order halved", _MEMORY_ORDER + r"acq_rel\b", _HALVES),
    Rule("order relaxed", r"\bstd_order\(order\)", ("std::memory_order_relaxed",)),
    Rule("store not finished", r"\bfinish_stores\(block\);", (";",)),
    Rule("not cleared", _calls("clear", "consumed"), ("void()",), call=True),
    Rule("order dropped", r"\bengine_\.order_after_\w+\(", ("true",), call=True),
    Rule("order dropped", r"\bdriver_\.(?:record|query|wait_event|synchronize)\(", ("0",), call=True),
    Rule("order dropped", r"\bissued - 1\b", ("issued",)),
    # Which launch, which lap, and how many.
    Rule("epoch off by one", _calls("flag_value"), (_first_argument("- 1"), _first_argument("+ 1")), True),
    Rule("epoch off by one", r"\bu32\(p\.epoch\)", ("u32(p.epoch - 1)", "u32(p.epoch + 1)")),
    Rule("epoch ignored", r"\w+ >> 32 == epoch\b", ("true",)),
    Rule("epoch ignored", r"\bnow - (?:age|command\.epoch)\b", ("now",)),
    Rule("lap ignored", r"\(position / u64\(depth\) \+ 1\) & 1", ("1",)),
    Rule("lap ignored", r"\blap << 63", ("u64(1) << 63",)),
    Rule("lap ignored", r">> 63 != lap\b", ("< 0",)),
    Rule("count off by one", _calls("completes"), (_last_argument("- 1"), _last_argument("+ 1")), call=True),
    Rule("count off by one", r"\+ n == total\b", ("== total", "+ n + 1 == total")),
)


def mutants(kernels: Path, sources: tuple[str, ...] = SOURCES) -> list[Mutant]:
    """Return every mutant of `sources`, files below `kernels`, by file and place."""
    found: dict[tuple[str, int, int, str], Mutant] = {}
    for file in sources:
        text = (kernels / file).read_text()
        code = _code_only(text)
        for rule in RULES:
            for start, end, replacement in rule.edits(code):
                mutant = Mutant(
                    file=file,
                    line=text.count("\n", 0, start) + 1,
                    rule=rule.name,
                    original=text[start:end],
                    replacement=replacement,
                    start=start,
                    end=end,
                    before=text[:start].rpartition("\n")[2],
                    after=text[end:].partition("\n")[0],
                )
                # Two rules may come to the same edit.
                found.setdefault((file, start, end, replacement), mutant)
    return sorted(found.values(), key=lambda m: (sources.index(m.file), m.start, m.rule, m.replacement))


def _code_only(text: str) -> str:
    """Return `text` with comments, strings and preprocessor lines blanked, every character in its place."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    text = re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", blank, text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)


def _closing_bracket(code: str, opening: int) -> int:
    """Return the index behind the bracket that closes the one at `opening`."""
    depth = 0
    for index in range(opening, len(code)):
        depth += {"(": 1, ")": -1}.get(code[index], 0)
        if depth == 0:
            return index + 1
    raise ValueError(f"no closing bracket for {code[opening - 40 : opening + 1]!r}")


def _is_definition(code: str, end: int) -> bool:
    return re.match(r"\s*(?:const\s*)?\{", code[end : end + 40]) is not None
