"""A worker whose rank 1 finds one element of its result changed after every launch: in its lowest bit where
there is one communication block, to what nobody has written where there are two.
"""

from __future__ import annotations

import numpy as np

from mkbench.dist import worker
from mkbench.dist.point_run import PointRun, Round
from mkbench.dist.verify import POISON

ROW, COLUMN = 300, 7


def tamper(run: PointRun) -> None:
    offset = run._layout.offsets["out"] + 2 * (ROW * int(run._params["ldb"]) + COLUMN)
    element = run._engine.read(offset, 2).view(np.uint16)
    element[0] = element[0] ^ 1 if run.point.comm_sms == 1 else POISON
    run._engine.write(offset, element.view(np.uint8))


if __name__ == "__main__":
    launch = PointRun.launch

    def launch_and_tamper(self: PointRun, index: int) -> Round:
        ended = launch(self, index)
        if self._place.rank == 1:
            tamper(self)
        return ended

    PointRun.launch = launch_and_tamper  # type: ignore[method-assign]
    worker.main()
