import pytest

from mkbench.core.selection import best_static


def test_a_tie_goes_to_fewer_communication_sms() -> None:
    assert best_static({8: 120.0, 16: 102.9, 32: 100.0, 64: 100.5}) == 16
    assert best_static({8: 120.0, 16: 103.1, 32: 100.0}) == 32


def test_nothing_to_choose_from() -> None:
    with pytest.raises(ValueError, match="empty"):
        best_static({})
