"""Medians with their uncertainty, and when to stop sampling."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np

from mkbench.core.units import plural

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Summary:
    """A median with its confidence interval and the number of samples."""

    median: float
    ci_low: float
    ci_high: float
    n: int

    def to_json(self) -> dict[str, float]:
        """Return {"median", "ci_low", "ci_high", "n"}."""
        return asdict(self)


def median(samples: Sequence[float]) -> float:
    """Return the median of at least one sample."""
    if not samples:
        raise ValueError("no samples")
    return float(np.median(np.asarray(samples, dtype=np.float64)))


def bootstrap_ci(samples: Sequence[float], level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the median; the same samples and seed give the same.

    One sample says nothing about its spread: the interval is that sample.
    """
    if not samples:
        raise ValueError("no samples")
    values = np.asarray(samples, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    medians = np.median(values[draws], axis=1)
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def ratio_ci(
    numerator: Sequence[float], denominator: Sequence[float], level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of median(numerator) / median(denominator).

    Both sets are drawn independently: it holds for samples that were not taken in pairs.
    """
    if not numerator or not denominator:
        raise ValueError("no samples")
    generator = np.random.default_rng(seed)
    above, below = (
        np.median(values[generator.integers(0, len(values), (RESAMPLES, len(values)))], axis=1)
        for values in (np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    )
    low, high = np.quantile(above / below, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def summarise(samples: Sequence[float], seed: int = 0) -> Summary:
    """Return the median of `samples` with its 95 % interval."""
    low, high = bootstrap_ci(samples, seed=seed)
    return Summary(median(samples), low, high, len(samples))


class Stopping(Protocol):
    """Decides when a point has been sampled enough."""

    def add(self, sample: float) -> None:
        """Take one sample, in microseconds."""
        ...

    def is_finished(self) -> bool:
        """Tell whether to stop now."""
        ...

    def describe(self) -> str:
        """Say why sampling stopped, for the record."""
        ...


class SampleCount:
    """Stop after `count` samples."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._seen = 0

    def add(self, sample: float) -> None:
        self._seen += 1

    def is_finished(self) -> bool:
        return self._seen >= self._count

    def describe(self) -> str:
        return plural(self._seen, "sample")


class Budget:
    """Stop once the samples add up to `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._limit_us = seconds * 1e6
        self._spent_us = 0.0

    def add(self, sample: float) -> None:
        self._spent_us += sample

    def is_finished(self) -> bool:
        return self._spent_us >= self._limit_us

    def describe(self) -> str:
        return f"time budget of {self._limit_us / 1e6:g} s"


class NarrowInterval:
    """Stop once the interval of the median is within `precision` of it to both sides.

    At least `minimum` samples: fewer can agree by chance.
    """

    def __init__(self, precision: float = 0.01, minimum: int = 6) -> None:
        self._precision = precision
        self._minimum = minimum
        self._samples: list[float] = []

    def add(self, sample: float) -> None:
        self._samples.append(sample)

    def is_finished(self) -> bool:
        if len(self._samples) < self._minimum:
            return False
        found = summarise(self._samples)
        widest = max(found.median - found.ci_low, found.ci_high - found.median)
        return widest <= self._precision * found.median

    def describe(self) -> str:
        return f"interval within {self._precision:.2%} after {len(self._samples)} samples"
