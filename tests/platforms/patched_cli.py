"""The command line with the worker of tests/dist/faulty_worker.py: what the environment plants there
happens to its ranks.
"""

from __future__ import annotations

import os
from functools import partialmethod

from faulty_worker import build_from, plant

from mkbench.cli import main
from mkbench.dist.launcher import foreign_launcher
from mkbench.platforms.host import HostPlatform

if __name__ == "__main__":
    if foreign_launcher() is None:
        HostPlatform.__init__ = partialmethod(HostPlatform.__init__, worker="faulty_worker")  # type: ignore[assignment]
    else:
        # The ranks are processes like this one.
        if fault := os.environ.get("MKBENCH_TEST_FAULT"):
            plant(fault)
        if kernels := os.environ.get("MKBENCH_TEST_KERNELS"):
            build_from(kernels)
    main()
