import math
from fractions import Fraction
from typing import Any

import pytest

from mkbench.core.errors import UsageError
from mkbench.core.pace import FASTEST_GBPS, SLOWEST_GBPS, Pace, fs_per_byte, parse_pace


@pytest.mark.parametrize(
    ("given", "rates"),
    [
        ("nvlink=450,network=50", {"nvlink": 450.0, "network": 50.0}),
        (" network = 50 , nvlink=4.5e2 ", {"nvlink": 450.0, "network": 50.0}),
        ({"network": 12.5}, {"network": 12.5}),
        ({"nvlink": 450}, {"nvlink": 450.0}),
    ],
)
def test_text_and_table_mean_the_same(given: Any, rates: dict[str, float]) -> None:
    assert parse_pace(given) == rates
    assert parse_pace(Pace.of(rates).label) == rates


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "pace '' is malformed"),
        ("450", "pace '450' is malformed"),
        ("nvlink=", "malformed"),
        ("nvlink=450,", "malformed"),
        ("nvlink=450,nvlink=9", "gives a rate twice"),
        ("nvlnk=450", "unknown rate 'nvlnk' of pace; did you mean 'nvlink'?"),
        ({"pcie": 50}, "unknown rate 'pcie' of pace"),
        ({}, "pace is empty"),
        ("nvlink=0", "pace nvlink=0 is no rate"),
        ("network=-50", "pace network=-50 is no rate"),
        ("network=nan", "pace network=nan is no rate"),
        ("network=inf", "pace network=inf is no rate"),
        ("network=50GB", "pace network=50GB is no rate"),
        ({"nvlink": True}, "pace nvlink=True is no rate"),
        ({"nvlink": [450]}, "is no rate"),
        ({"nvlink": math.nextafter(SLOWEST_GBPS, 0)}, "is no rate from 0.001 to 100000 GB/s"),
        ({"nvlink": math.nextafter(FASTEST_GBPS, math.inf)}, "is no rate"),
    ],
)
def test_what_is_no_pace_is_refused_in_one_line(given: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_pace(given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_ranks_share_the_rates_of_their_gpu() -> None:
    assert Pace(450.0, 50.0).shared_by(4) == Pace(112.5, 12.5)
    assert Pace(None, 50.0).shared_by(2) == Pace(None, 25.0)
    assert Pace().shared_by(4) == Pace()


def test_the_unit_resolves_the_rates_of_links_and_holds_all_others() -> None:
    assert fs_per_byte(None) == 0
    assert fs_per_byte(112.5) == 8889
    assert fs_per_byte(12.5) == 80_000
    for gbps in (SLOWEST_GBPS / 64, 1.0, 900.0):
        assert fs_per_byte(gbps) == pytest.approx(Fraction(10**6) / Fraction(gbps), rel=5e-4)
    assert fs_per_byte(FASTEST_GBPS) > 0
    # What a task of 16 ranks or the largest command moves, at the slowest rate: in 64 bits, as kernels count.
    largest = max(2 * 16 * 65536, ((1 << 18) - 1) * 16)
    assert largest * fs_per_byte(SLOWEST_GBPS / 64) < 2**63


def test_words_and_json_say_the_rates_as_asked() -> None:
    assert Pace(450.0, 50.0).words == "paced to 450 GB/s of NVLink and 50 GB/s of network a GPU"
    assert Pace(None, 12.5).words == "paced to 12.5 GB/s of network a GPU"
    assert Pace(None, 12.5).to_json() == {"nvlink_gbps": None, "network_gbps": 12.5}
