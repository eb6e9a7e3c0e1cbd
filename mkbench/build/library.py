"""A kernel's shared object, loaded: its C functions and its structs."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from mkbench.build.layout import Layout
from mkbench.core.errors import EnvironmentProblem


class Library:
    """What `mkbench.build.cpu` built, from Python. Structs come from the library's description of them."""

    def __init__(self, path: Path) -> None:
        try:
            self.handle = ctypes.CDLL(str(path))
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot load the built kernel: {error}",
                hint=f"have it built again: rm {path}",
            ) from error
        self.layout = Layout(self.handle)

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        """Return an exported C function with its types set."""
        function = getattr(self.handle, name)
        function.restype, function.argtypes = result, list(arguments)
        return function
