"""Faults that the simulator injects, for tests of the controller and of the transports."""

import re
from dataclasses import dataclass

from mkbench.core.errors import UsageError

_FORM = re.compile(r"([a-z_]+)@(\d+(?:\.\d+)?)us(?:x(\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what happens, when in virtual time, how strongly.

    The simulator knows the kinds; "network_slow@500usx2" halves the network's rate after 500 us.
    """

    kind: str
    at_us: float = 0.0
    factor: float = 1.0

    @property
    def label(self) -> str:
        """The text that `parse_fault` reads back."""
        return f"{self.kind}@{self.at_us:g}usx{self.factor:g}"


def parse_fault(text: str) -> Fault:
    """Return the fault of "kind@TIMEus" or "kind@TIMEusxFACTOR". Raises UsageError."""
    match = _FORM.fullmatch(text)
    if not match:
        raise UsageError(f"fault {text!r} is malformed", hint="write network_slow@500usx2")
    return Fault(match[1], float(match[2]), float(match[3] or 1))
