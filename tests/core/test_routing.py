import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkbench.core.workloads.base import Shape
from mkbench.core.workloads.routing import Deal, routing_of, skew_of


def shape(t: int, experts: int, topk: int, skew: int = 0) -> Shape:
    extents = {"t": t, "hidden": 8, "inter": 8, "experts": experts, "topk": topk}
    return Shape(**extents, **({"skew": skew} if skew else {}))


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    experts = draw(st.integers(1, 40))
    topk = draw(st.integers(1, min(8, experts)))
    return shape(draw(st.integers(1, 700)), experts, topk, draw(st.sampled_from((0, 50, 120, 2000))))


@settings(max_examples=60, deadline=None)
@given(shape=shapes())
def test_a_token_chooses_distinct_experts_and_its_weights_add_up(shape: Shape) -> None:
    routing = routing_of(shape)
    assert routing.experts.shape == routing.weights.shape == (shape.t, shape.topk)
    assert routing.experts.dtype == np.int32
    assert routing.weights.dtype == np.float32
    assert routing.experts.min() >= 0
    assert routing.experts.max() < shape.experts
    ordered = np.sort(routing.experts, axis=1)
    assert (ordered[:, 1:] > ordered[:, :-1]).all()
    assert (routing.weights > 0).all()
    assert np.allclose(routing.weights.sum(axis=1), 1)


def test_without_skew_experts_are_chosen_alike_and_with_it_few_are_chosen_most() -> None:
    counts = {
        skew: np.sort(np.bincount(routing_of(shape(20000, 64, 4, skew)).experts.reshape(-1), minlength=64))
        for skew in (0, 120, 3000)
    }
    mean = 20000 * 4 / 64
    assert np.abs(counts[0] - mean).max() < 6 * np.sqrt(mean)
    assert counts[120][-1] > 4 * mean > 16 * counts[120][0]
    # The most popular experts are everybody's.
    assert counts[3000][-3:].tolist() == [20000] * 3
    assert counts[3000][:-8].sum() == 0


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(2000, 6000),
    experts=st.integers(16, 64),
    topk=st.integers(1, 4),
    skew=st.integers(50, 200),
    ranks=st.integers(2, 8),
)
def test_a_skewed_routing_is_more_uneven_and_moves_as_many_rows(
    tokens: int, experts: int, topk: int, skew: int, ranks: int
) -> None:
    plain, skewed = (Deal(shape(tokens, experts, topk, s), 1, ranks) for s in (0, skew))
    for rows in (Deal.rows, Deal.expert_rows):
        assert rows(plain).sum() == rows(skewed).sum() == tokens * topk
    assert skewed.expert_rows().std() > 2 * plain.expert_rows().std()
    assert skewed.expert_rows().max() > plain.expert_rows().max()


def test_the_routing_is_of_the_shape_alone() -> None:
    assert routing_of(shape(50, 16, 2)) is routing_of(shape(50, 16, 2))
    wider = Shape(t=50, hidden=640, inter=24, experts=16, topk=2)
    assert np.array_equal(routing_of(wider).experts, routing_of(shape(50, 16, 2)).experts)
    assert not np.array_equal(routing_of(shape(50, 16, 2, 10)).experts, routing_of(shape(50, 16, 2)).experts)
    assert (skew_of(shape(1, 1, 1)), skew_of(shape(1, 1, 1, 7))) == (0, 7)


def test_the_routing_cannot_be_changed_by_who_shares_it() -> None:
    with pytest.raises(ValueError, match="read-only"):
        routing_of(shape(9, 4, 2)).experts[0, 0] = 1


def test_a_large_routing_is_drawn_in_bands_that_differ() -> None:
    experts = routing_of(shape(9000, 1024, 1)).experts[:, 0]
    assert not np.array_equal(experts[:4096], experts[4096:8192])


@settings(max_examples=60, deadline=None)
@given(shape=shapes(), nodes=st.integers(1, 4), ranks_per_node=st.integers(1, 5))
def test_shards_and_rows_by_definition(shape: Shape, nodes: int, ranks_per_node: int) -> None:
    deal, ranks = Deal(shape, nodes, ranks_per_node), nodes * ranks_per_node
    assert [token for rank in range(ranks) for token in deal.tokens(rank)] == list(range(shape.t))
    assert [expert for rank in range(ranks) for expert in deal.experts(rank)] == list(range(shape.experts))
    routing = routing_of(shape)
    for rank in range(ranks):
        source = {token: source for source in range(ranks) for token in deal.tokens(source)}
        expected = sorted(
            (int(expert), source[token], token, float(weight))
            for token in range(shape.t)
            for expert, weight in zip(routing.experts[token], routing.weights[token], strict=True)
            if expert in deal.experts(rank)
        )
        token, expert, weight = deal.of_rank(rank)
        found = zip(
            expert.tolist(), [source[t] for t in token.tolist()], token.tolist(), weight.tolist(), strict=True
        )
        assert list(found) == expected
        assert deal.rows()[rank] == len(expected)
        for node in range(nodes):
            hosted = {
                e for r in range(node * ranks_per_node, (node + 1) * ranks_per_node) for e in deal.experts(r)
            }
            own = routing.experts[deal.tokens(rank).start : deal.tokens(rank).stop]
            assert deal.choices(rank)[:, node].tolist() == [len(hosted & set(row)) for row in own.tolist()]
    assert deal.expert_rows().sum() == shape.t * shape.topk
