from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mkbench.core.errors import UsageError
from mkbench.dist.nodes import Topology, require_block_order, subdivide


def test_one_machine_is_cut_into_nodes():
    assert subdivide([(0, 1, 2, 3)], 2).nodes == ((0, 1), (2, 3))


def test_machines_are_never_merged_into_a_node():
    topology = subdivide([(0, 1), (2, 3)], 2)
    assert topology.nodes == ((0, 1), (2, 3))
    with pytest.raises(UsageError):
        subdivide([(0, 1), (2, 3)], 4)


def test_the_error_names_the_ranks_and_the_choices():
    with pytest.raises(UsageError) as caught:
        subdivide([(0, 1, 2, 3, 4, 5)], 4)
    assert "6 ranks share a machine (ranks 0, 1, 2, 3, 4, 5)" in str(caught.value)
    assert "1 or 2 or 3 or 6" in (caught.value.hint or "")


def test_machines_of_different_size():
    assert subdivide([(0, 1, 2, 3), (4, 5)], 2).nodes == ((0, 1), (2, 3), (4, 5))


def test_places_of_a_rank():
    topology = Topology(((0, 1), (2, 3), (4, 5)))
    assert [topology.node_of(rank) for rank in range(6)] == [0, 0, 1, 1, 2, 2]
    assert [topology.local_rank(rank) for rank in range(6)] == [0, 1] * 3
    assert topology.rail_peers(3) == (1, 5)
    assert topology.ranks_per_node == 2


def test_round_robin_placement_is_refused_with_the_fix():
    topology = subdivide([(0, 2), (1, 3)], 2)
    assert topology.nodes == ((0, 2), (1, 3))
    with pytest.raises(UsageError) as caught:
        require_block_order(topology)
    assert "-ppn" in (caught.value.hint or "")
    require_block_order(subdivide([(0, 1), (2, 3)], 2))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_rank_is_on_one_node_and_rails_are_symmetric(
    machines: int, per_machine: int, size: int, random
):
    ranks = list(range(machines * per_machine * size))
    random.shuffle(ranks)
    share = per_machine * size
    groups = [tuple(ranks[i * share : (i + 1) * share]) for i in range(machines)]
    topology = subdivide(groups, size)
    assert sorted(rank for node in topology.nodes for rank in node) == sorted(ranks)
    for rank in ranks:
        assert all(rank in topology.rail_peers(peer) for peer in topology.rail_peers(rank))
        machine = next(group for group in groups if rank in group)
        assert set(topology.nodes[topology.node_of(rank)]) <= set(machine)
