"""Which experts a router chose for each token, and what follows from that alone.

The choice is part of the problem, as its extents are: it depends on the numbers of tokens and experts, top-k
and the skew, and on no seed, so that points with other values, ranks or partitions move the same rows.

An expert of popularity rank i = 1, 2, ... is drawn with weight i^-(skew / 100), each token drawing without
replacement; which expert has which popularity is random.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mkbench.core.workloads.base import Shape
from mkbench.core.workloads.gemm import ceil_div

_BAND = 1 << 22
"""Tokens times experts that are drawn at once."""

Integers = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Routing:
    """Experts of every token, distinct within a token, and their weights, which add up to 1."""

    experts: Integers
    weights: NDArray[np.float32]


def skew_of(shape: Shape) -> int:
    """Return the exponent of the popularity in hundredths; 0, the default, is uniform."""
    return shape.to_json().get("skew", 0)


def routing_of(shape: Shape) -> Routing:
    """Return the routing of all tokens; the arrays are shared and must not be changed."""
    return _routing(shape.t, shape.experts, shape.topk, skew_of(shape))


@lru_cache(maxsize=8)
def _routing(tokens: int, experts: int, topk: int, skew: int) -> Routing:
    rng = np.random.default_rng([tokens, experts, topk, skew])
    # The least of exponentials divided by weights is a draw by weight; logarithms hold any skew.
    handicap = (skew / 100 * np.log1p(rng.permutation(experts))).astype(np.float32)
    chosen = np.empty((tokens, topk), np.int32)
    band = max(1, _BAND // experts)
    for start in range(0, tokens, band):
        rows = min(band, tokens - start)
        draw = rng.standard_exponential((rows, experts), dtype=np.float32)
        keys = np.log(np.maximum(draw, np.finfo(np.float32).tiny)) + handicap
        some = np.argpartition(keys, topk - 1, axis=1)[:, :topk]
        order = np.argsort(np.take_along_axis(keys, some, axis=1), axis=1)
        chosen[start : start + rows] = np.take_along_axis(some, order, axis=1)
    weights = rng.random((tokens, topk), dtype=np.float32) + np.float32(0.01)
    weights /= weights.sum(axis=1, keepdims=True)
    for array in (chosen, weights):
        array.setflags(write=False)
    return Routing(chosen, weights)


@lru_cache(maxsize=8)
def _hosts(shape: Shape, local_experts: int) -> Integers:
    hosts: Integers = routing_of(shape).experts // np.int32(local_experts)
    hosts.setflags(write=False)
    return hosts


@dataclass(frozen=True, slots=True)
class Deal:
    """How tokens and experts are dealt out: contiguous shards, the last ones smaller or empty."""

    shape: Shape
    nodes: int
    ranks_per_node: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def shard(self) -> int:
        """Tokens of a rank."""
        return ceil_div(self.shape.t, self.ranks)

    @property
    def local_experts(self) -> int:
        """Experts of a rank."""
        return ceil_div(self.shape.experts, self.ranks)

    def tokens(self, rank: int) -> range:
        """Return the tokens that `rank` starts with."""
        return _part(self.shape.t, self.shard, rank)

    def experts(self, rank: int) -> range:
        """Return the experts that `rank` has."""
        return _part(self.shape.experts, self.local_experts, rank)

    def hosts(self) -> Integers:
        """Return the rank of each choice [t, topk]."""
        return _hosts(self.shape, self.local_experts)

    def rows(self) -> Integers:
        """Return the rows that each rank gets, one a choice."""
        return np.bincount(self.hosts().reshape(-1), minlength=self.ranks).astype(np.int32)

    def of_rank(self, rank: int) -> tuple[Integers, Integers, NDArray[np.float32]]:
        """Return token, expert and weight of each row of `rank`, by expert, then by token.

        Tokens are dealt out in order, so that is by source rank and by token there.
        """
        routing = routing_of(self.shape)
        token, place = np.nonzero(self.hosts() == rank)
        expert, weight = routing.experts[token, place], routing.weights[token, place]
        order = np.argsort(expert, kind="stable")
        return token[order].astype(np.int32), expert[order], weight[order]

    def expert_rows(self) -> Integers:
        """Return how many tokens chose each expert."""
        chosen = routing_of(self.shape).experts.reshape(-1)
        return np.bincount(chosen, minlength=self.shape.experts).astype(np.int32)

    def choices(self, rank: int) -> Integers:
        """Return for each token of `rank` how many of its experts each node has [tokens, nodes]."""
        tokens = self.tokens(rank)
        node = self.hosts()[tokens.start : tokens.stop] // np.int32(self.ranks_per_node)
        return np.stack([(node == n).sum(axis=1) for n in range(self.nodes)], axis=1).astype(np.int32)


def _part(total: int, share: int, index: int) -> range:
    return range(min(total, index * share), min(total, (index + 1) * share))
