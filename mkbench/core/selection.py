"""Which static partition is best."""

from collections.abc import Mapping

TIE = 0.03


def best_static(latency_us: Mapping[int, float]) -> int:
    """Return the communication SMs of the best partition, from the median latency of each.

    All must be of one kernel, shape, reduction and cluster. Latency is often flat around its minimum, where
    the position of the lowest median is noise. So the winner has the fewest communication SMs among those
    within TIE of the lowest median: a tie goes to computation. Ratios are taken to the lowest median all the
    same, so that the tie flatters nobody. Raises ValueError if there are none.
    """
    lowest = min(latency_us.values())
    return min(comm_sms for comm_sms, median in latency_us.items() if median <= lowest * (1 + TIE))
