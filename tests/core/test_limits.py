from collections.abc import Callable
from typing import Any

import pytest

from mkbench.core.errors import UsageError
from mkbench.core.limits import MAX_CHUNK_TILES, MAX_NODE_RANKS, MAX_NODES
from mkbench.core.plan import Plan


@pytest.mark.parametrize(
    ("setting", "most", "others"),
    [
        ("ranks_per_node", MAX_NODE_RANKS, {}),
        ("nodes", MAX_NODES, {"ranks_per_node": 1}),
        ("chunk_tiles", MAX_CHUNK_TILES, {}),
    ],
)
def test_one_more_than_fits_is_refused_with_the_limit(
    setting: str, most: int, others: dict[str, Any], make_small_plan: Callable[..., Plan]
) -> None:
    place = {"cluster": "2x8-h200-ib"} | others
    make_small_plan(**place | {setting: most})
    with pytest.raises(UsageError, match=rf"{most + 1} .* limit of {most}") as caught:
        make_small_plan(**place | {setting: most + 1})
    assert caught.value.hint is not None
    assert str(most) in caught.value.hint


def test_a_chunk_that_never_travels_may_be_of_any_size(make_small_plan: Callable[..., Plan]) -> None:
    assert make_small_plan(chunk_tiles=1000).points[0].chunk_tiles == 1000
