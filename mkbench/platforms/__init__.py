"""Platforms by name; each is imported only when it is asked for."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mkbench.core.environment import default_platform
from mkbench.core.errors import EnvironmentProblem
from mkbench.core.names import unknown

if TYPE_CHECKING:
    from mkbench.platforms.base import Platform

_CLASSES = {"sim": "SimPlatform", "host": "HostPlatform", "cuda": "CudaPlatform"}
PLATFORMS = tuple(_CLASSES)


def platform(name: str) -> "Platform":
    """Return the platform `name` ("auto" included).

    Raises UsageError for an unknown name, EnvironmentProblem for one that this version was built without.
    """
    if name == "auto":
        name = resolve_auto()
    if name not in _CLASSES:
        raise unknown("platform", name, ("auto", *PLATFORMS))
    if not _built_in(name):
        raise EnvironmentProblem(
            f"the {name} platform is not built into this version of mkbench yet",
            hint="see mkbench list platforms",
        )
    found: Platform = getattr(import_module(f"{__name__}.{name}"), _CLASSES[name])()
    return found


def resolve_auto() -> str:
    """Return "cuda" where a GPU is visible and the platform is there to use it, else "sim"."""
    return default_platform()


def _built_in(name: str) -> bool:
    return find_spec(f"{__name__}.{name}") is not None
