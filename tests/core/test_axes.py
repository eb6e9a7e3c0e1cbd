import pytest
from hypothesis import given
from hypothesis import strategies as st

from mkbench.core.axes import FORMS, parse_axis, parse_sizes
from mkbench.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("2:64:2", list(range(2, 65, 2))),
        ("2:7:3", [2, 5]),
        ("3:5", [3, 4, 5]),
        ("8,2,4,2", [2, 4, 8]),
        ("1, 4:8:2", [1, 4, 6, 8]),
        ("16", [16]),
    ],
)
def test_axis(text: str, values: list[int]) -> None:
    assert parse_axis(text) == values


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2:",
        ":",
        "2:64:0",
        "64:2:2",
        "a",
        "2;4",
        "1:2:3:4",
        "-2:4",
        "2,,4",
        "1.5",
        "0:999999999",
        "9" * 5000,
        "²",
    ],
)
def test_malformed_axis_shows_the_accepted_forms(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_axis(text)
    assert caught.value.hint == FORMS
    assert "axis" in str(caught.value)


@given(st.text(max_size=12))
def test_any_text_is_values_or_a_usage_error(text: str) -> None:
    try:
        values = parse_axis(text)
    except UsageError:
        return
    assert values
    assert values == sorted(set(values))


@given(first=st.integers(0, 500), count=st.integers(1, 60), step=st.integers(1, 40))
def test_a_range_includes_its_end(first: int, count: int, step: int) -> None:
    last = first + (count - 1) * step
    assert parse_axis(f"{first}:{last}:{step}") == list(range(first, last + 1, step))


def test_sizes() -> None:
    assert parse_sizes("4K,2048, 4096,1M") == [2048, 4096, 1 << 20]


@pytest.mark.parametrize("text", ["0", "-4", "2048,", "4X", "1.5K", "", "2048,-1"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="size"):
        parse_sizes(text)
