"""Near names for what was mistyped."""

from collections.abc import Iterable
from difflib import get_close_matches

from mkbench.core.errors import UsageError


def suggest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice that `name` was most likely meant to be, or None if nothing is near."""
    near = get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return near[0] if near else None


def unknown(kind: str, name: str, choices: Iterable[str], where: str = "") -> UsageError:
    """Return the error for a name that is not among `choices`: its near name, or all of them."""
    known = list(choices)
    near = suggest(name, known)
    message = f"unknown {kind} {name!r}{where}" + (f"; did you mean {near!r}?" if near else "")
    return UsageError(message, hint=f"known: {', '.join(known)}")
