"""Where the kernels and the shipped configurations are: inside the wheel, or in the checkout."""

from pathlib import Path

import mkbench
from mkbench.core.errors import EnvironmentProblem


def kernels_dir() -> Path:
    """Return the folder of kernel sources."""
    return _folder("kernels")


def configs_dir() -> Path:
    """Return the folder of shipped hardware, cluster and sweep configurations."""
    return _folder("configs")


def _folder(name: str) -> Path:
    package = Path(mkbench.__file__).resolve().parent
    for folder in (package / f"_{name}", package.parent / name):
        if folder.is_dir():
            return folder
    raise EnvironmentProblem(
        f"mkbench was installed without its {name} folder",
        hint="reinstall mkbench from a wheel or a checkout",
    )
