"""From a configuration to points: defaults filled in, everything refused here that can be refused here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mkbench.core.cluster import ClusterProfile
from mkbench.core.config import SweepConfig
from mkbench.core.defaults import default_network_memory, resolved, resolved_cluster
from mkbench.core.errors import UsageError
from mkbench.core.faults import Fault, parse_fault
from mkbench.core.limits import check_limits
from mkbench.core.memory import check_memory
from mkbench.core.pace import Pace
from mkbench.core.point import Point
from mkbench.core.workloads import KERNELS, workload
from mkbench.core.workloads.base import Reducing, Reduction, Routed, Shape, Workload

__all__ = ["Plan", "Point", "make_plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Points in the order in which they run, and the configuration with no default left open."""

    points: tuple[Point, ...]
    config: SweepConfig
    cluster: ClusterProfile


def make_plan(config: SweepConfig) -> Plan:
    """Return the plan of `config`: by kernel, size and reduction, static by communication SMs, then adaptive.

    Raises UsageError for what no machine could run, EnvironmentProblem for what does not fit into memory.
    """
    cluster = resolved_cluster(config)
    config = resolved(config, cluster)
    reductions = _reductions(config)
    points: list[Point] = []
    for kernel in config.kernels:
        for size, shape in _shapes(config, workload(kernel), cluster.ranks):
            for reduction in reductions[kernel]:
                points += _points(config, cluster, workload(kernel, reduction), size, shape, reduction)
    for point in points:
        check_limits(point)
        check_memory(point, cluster)
    return Plan(tuple(points), config, cluster)


def _shapes(config: SweepConfig, kernel: Workload, ranks: int) -> Iterator[tuple[int | None, Shape]]:
    for size, shape in _plain_shapes(config, kernel, ranks):
        if config.skew is None or not isinstance(kernel, Routed):
            yield size, shape
        else:
            yield from ((size, kernel.skewed(shape, round(100 * skew))) for skew in config.skew)


def _plain_shapes(config: SweepConfig, kernel: Workload, ranks: int) -> Iterator[tuple[int | None, Shape]]:
    sizes = config.sizes_of(kernel.name)
    if config.shape is not None:
        yield None, kernel.shape_from(config.shape)
    elif sizes is None:
        assert isinstance(kernel.small, Mapping), "else its size is in the configuration"
        yield None, kernel.shape_from(kernel.small)
    for size in sizes or ():
        yield size, kernel.shape_of(size, ranks)


def _reductions(config: SweepConfig) -> dict[str, tuple[Reduction | None, ...]]:
    """Return in which ways each kernel is to sum; (None,) for one that has no choice."""
    asked = config.reduction or ("ordered",)
    choosing = [name for name in config.kernels if isinstance(workload(name), Reducing)]
    if "atomic" in asked and not choosing:
        able = [name for name, kernel in KERNELS.items() if isinstance(kernel, Reducing)]
        raise UsageError(
            f"{' and '.join(config.kernels)} cannot reduce in an atomic way",
            hint=f"leave reduction out, also of a file; it is for {' and '.join(able)}",
        )
    return {name: asked if name in choosing else (None,) for name in config.kernels}


def _points(
    config: SweepConfig,
    cluster: ClusterProfile,
    kernel: Workload,
    size: int | None,
    shape: Shape,
    reduction: Reduction | None,
) -> Iterator[Point]:
    """Yield the points of one kernel, shape and reduction: static partitions, then a policy that adapts."""
    blocks = cluster.blocks
    start = config.start_comm_sms
    if start is None:
        start = kernel.start_comm_sms(shape, cluster)
    _check_comm_sms(start, blocks, cluster)
    faults = tuple(parse_fault(text) for text in config.faults)
    statics = (config.comm_sms or ()) if "static" in config.policies else ()
    choices: list[tuple[str, int | None]] = [("static", comm_sms) for comm_sms in statics]
    choices += [("adaptive", None)] if "adaptive" in config.policies else []
    # What takes long where tokens are routed: once for all partitions.
    lower_bound_us = kernel.lower_bound_us(shape, cluster)
    network_bytes = kernel.network_bytes(shape, cluster.nodes, cluster.ranks_per_node)
    for policy, comm_sms in choices:
        if comm_sms is not None:
            _check_comm_sms(comm_sms, blocks, cluster)
        yield Point(
            key=_key(config, cluster, kernel, shape, reduction, policy, comm_sms, faults),
            kernel=kernel.name,
            size=size,
            shape=shape,
            platform=config.platform,
            cluster=cluster.name,
            hardware=cluster.hardware.name,
            nodes=cluster.nodes,
            ranks_per_node=cluster.ranks_per_node,
            ranks=cluster.ranks,
            ranks_per_gpu=cluster.ranks_per_gpu,
            blocks=blocks,
            transport=config.transport or config.platform,
            policy=policy,
            comm_sms=comm_sms,
            start_comm_sms=start if comm_sms is None else comm_sms,
            chunk_tiles=config.chunk_tiles or kernel.chunk_tiles_for(shape, cluster.ranks_per_node),
            samples=config.samples or 1,
            seed=config.seed,
            data=bool(config.data),
            family=config.family or "exact",
            flops_per_rank=kernel.flops_per_rank(shape, cluster.ranks),
            lower_bound_us=lower_bound_us,
            network_bytes=network_bytes,
            deadline_s=config.deadline_s,
            faults=faults,
            network_memory=config.network_memory or "host",
            pace=Pace.of(config.pace) if config.pace else None,
            reduction=reduction,
        )


def _key(
    config: SweepConfig,
    cluster: ClusterProfile,
    kernel: Workload,
    shape: Shape,
    reduction: Reduction | None,
    policy: str,
    comm_sms: int | None,
    faults: tuple[Fault, ...],
) -> str:
    """Return the name of a point: what always tells points apart, then what was set beside the defaults."""
    parts = [kernel.name, shape.label, config.platform, cluster.name, policy]
    parts += [f"c{comm_sms}"] if comm_sms is not None else []
    parts += [f"seed{config.seed}"]
    if comm_sms is None and config.start_comm_sms is not None:
        parts.append(f"start{config.start_comm_sms}")
    if reduction == "atomic":
        parts.append(reduction)
    if config.chunk_tiles is not None:
        parts.append(f"chunk{config.chunk_tiles}")
    transport = config.transport or config.platform
    if config.network_memory != default_network_memory(config.platform, cluster.nodes, transport):
        parts.append(f"network-{config.network_memory}")
    if config.pace:
        parts.append(f"pace-{Pace.of(config.pace).label}")
    return "/".join(parts + [f"fault-{fault.label}" for fault in faults])


def _check_comm_sms(comm_sms: int, blocks: int, cluster: ClusterProfile) -> None:
    if not 1 <= comm_sms <= blocks - 1:
        raise UsageError(
            f"{comm_sms} communication SMs are outside the limits of cluster {cluster.name!r}: 1 to "
            f"{blocks - 1}, since a rank has {blocks} blocks and one must compute",
            hint=f"choose --comm-sms from 1 to {blocks - 1}",
        )
