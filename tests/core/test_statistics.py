import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mkbench.core.statistics import (
    Budget,
    NarrowInterval,
    SampleCount,
    Stopping,
    bootstrap_ci,
    median,
    ratio_ci,
    summarise,
)


def samples_until_finished(criterion: Stopping, stream: list[float]) -> int | None:
    for count, sample in enumerate(stream, start=1):
        criterion.add(sample)
        if criterion.is_finished():
            return count
    return None


def test_median() -> None:
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5
    with pytest.raises(ValueError, match="no samples"):
        median([])


def test_one_sample_is_its_own_interval() -> None:
    assert summarise([5.0]).to_json() == {"median": 5.0, "ci_low": 5.0, "ci_high": 5.0, "n": 1}


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=20))
def test_the_interval_is_reproducible_and_inside_the_samples(samples: list[float]) -> None:
    low, high = bootstrap_ci(samples, seed=3)
    assert (low, high) == bootstrap_ci(samples, seed=3)
    assert min(samples) <= low <= high <= max(samples)


def test_the_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    streams = rng.lognormal(size=(200, 25))
    hits = sum(low <= 1 <= high for low, high in (bootstrap_ci(list(stream)) for stream in streams))
    assert 175 <= hits <= 199


def test_a_higher_level_is_wider() -> None:
    samples = list(np.random.default_rng(1).normal(100, 5, 30))
    narrow, wide = bootstrap_ci(samples, level=0.5), bootstrap_ci(samples, level=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_sample_count() -> None:
    criterion = SampleCount(3)
    assert not criterion.is_finished()
    assert samples_until_finished(criterion, [1.0] * 10) == 3
    assert criterion.describe() == "3 samples"


def test_budget() -> None:
    criterion = Budget(seconds=0.001)
    assert samples_until_finished(criterion, [300.0] * 10) == 4
    assert criterion.describe() == "time budget of 0.001 s"


def test_narrow_interval_needs_its_minimum_even_when_all_agree() -> None:
    criterion = NarrowInterval(precision=0.01, minimum=6)
    assert samples_until_finished(criterion, [7.0] * 20) == 6
    assert criterion.describe() == "interval within 1.00% after 6 samples"


def test_narrow_interval_takes_longer_the_noisier_the_stream() -> None:
    rng = np.random.default_rng(2)
    quiet = samples_until_finished(NarrowInterval(), list(rng.normal(100, 1, 400)))
    noisy = samples_until_finished(NarrowInterval(), list(rng.normal(100, 4, 400)))
    assert quiet is not None
    assert noisy is not None
    assert 6 <= quiet < noisy


def test_narrow_interval_never_trusts_two_modes() -> None:
    assert samples_until_finished(NarrowInterval(), [100.0, 150.0] * 30) is None


def test_a_ratio_carries_the_spread_of_both_sides() -> None:
    low, high = ratio_ci([9.0, 10.0, 11.0] * 4, [4.0, 5.0, 6.0] * 4)
    assert 9 / 6 <= low < 2.0 < high <= 11 / 4
    assert ratio_ci([10.0], [5.0]) == (2.0, 2.0)
    with pytest.raises(ValueError, match="no samples"):
        ratio_ci([], [1.0])
