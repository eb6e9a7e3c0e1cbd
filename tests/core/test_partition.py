from hypothesis import given
from hypothesis import strategies as st

from mkbench.core.partition import Partition, Work, balanced

works = st.builds(Work, tasks=st.floats(0, 1e6), cost_us=st.floats(0, 1e4))


def test_partition_adds_up() -> None:
    assert Partition.of(132, 16).to_json() == {"compute": 116, "communication": 16}


def test_equal_work_halves_the_blocks() -> None:
    assert balanced(132, Work(10, 2), Work(5, 4)) == 66


@given(blocks=st.integers(2, 200), communication=works, compute=works)
def test_both_roles_keep_a_block(blocks: int, communication: Work, compute: Work) -> None:
    assert 1 <= balanced(blocks, communication, compute) <= blocks - 1


@given(blocks=st.integers(8, 200), serve=st.integers(1, 1000), compute=st.integers(1, 1000))
def test_one_block_more_or_less_changes_who_finishes_first(blocks: int, serve: int, compute: int) -> None:
    n = balanced(blocks, Work(serve, 1), Work(compute, 1))
    if n + 1 < blocks:
        assert serve / (n + 1) <= compute / (blocks - n - 1)
    if n > 1:
        assert serve / (n - 1) >= compute / (blocks - n + 1)
