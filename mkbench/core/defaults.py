"""What a sweep means where the user said nothing, and which settings contradict each other."""

from mkbench.core.cluster import ClusterProfile, load_cluster
from mkbench.core.config import SweepConfig
from mkbench.core.environment import default_platform
from mkbench.core.errors import UsageError
from mkbench.core.workloads import KERNELS, workload
from mkbench.core.workloads.base import Routed

GPU_COMM_SMS = tuple(range(2, 65, 2))
GPU_CLUSTER = "1x8-h100"
HOST_COMM_SMS = (1, 2, 4)
HOST_CLUSTER = "host"
SAMPLES = {"sim": 1, "host": 10, "cuda": 20}
"""Launches timed a point; the simulator is deterministic."""
FAMILIES = {"sim": "exact", "host": "exact", "cuda": "normal"}
"""Inputs of the timed launches: a GPU runs faster on sparse ones. Results are checked with exact ones too."""
CUDA_NETWORK_MEMORY = {"shm": "device", "tcp": "host"}
"""Where what host proxies move lies on platform `cuda`, by transport: in GPU memory, from and to which copy
engines bring it, or in host memory that SMs access. The faster one: results/h200-virtual/network-memory."""


def resolved_cluster(config: SweepConfig) -> ClusterProfile:
    """Return the cluster with the counts that the user gave.

    Raises UsageError if it does not suit the platform.
    """
    platform = _platform(config)
    cluster = load_cluster(config.cluster or (HOST_CLUSTER if platform == "host" else GPU_CLUSTER))
    cluster = cluster.resized(config.nodes, config.ranks_per_node).sharing(config.ranks_per_gpu)
    if cluster.ranks_per_gpu > 1 and platform != "cuda":
        raise UsageError(
            f"cluster {cluster.name!r} shares GPUs between ranks, which platform {platform!r} does not have",
            hint="use --platform cuda, or another --cluster",
        )
    if platform == "host" and cluster.hardware.name != "cpu":
        raise UsageError(
            f"platform 'host' runs on this machine's processor, not on cluster {cluster.name!r}",
            hint="leave --cluster out and set --nodes and --ranks-per-node, or use --platform sim",
        )
    if platform != "host" and cluster.hardware.name == "cpu":
        raise UsageError(
            f"cluster {cluster.name!r} has no GPU rates, which platform {platform!r} needs",
            hint=f"choose a cluster such as --cluster {GPU_CLUSTER}, or use --platform host",
        )
    if platform == "sim" and cluster.nodes > 1 and cluster.network is None:
        raise UsageError(
            f"cluster {cluster.name!r} has no network between its {cluster.nodes} nodes",
            hint="choose a cluster with a network, such as --cluster 2x8-h200-ib",
        )
    return cluster


def resolved(config: SweepConfig, cluster: ClusterProfile) -> SweepConfig:
    """Return `config` with every default filled in that does not depend on the single point.

    Raises UsageError for a setting that the platform does not have.
    """
    platform = _platform(config)
    on_host = platform == "host"
    transport = config.transport or _transport(platform, cluster.nodes)
    allowed = ("sim",) if platform == "sim" else ("shm", "tcp")
    if transport not in allowed:
        raise UsageError(
            f"platform {platform!r} has no transport {transport!r}", hint=f"choose {' or '.join(allowed)}"
        )
    network_memory = config.network_memory or default_network_memory(platform, cluster.nodes, transport)
    if network_memory == "device" and (platform != "cuda" or cluster.nodes == 1):
        where = "one node" if platform == "cuda" else f"platform {platform!r}"
        raise UsageError(
            f"{where} has no network memory 'device'",
            hint="leave --network-memory out; 'device' is for --platform cuda on several nodes",
        )
    _check_pace(config, platform)
    _check_skew(config)
    if config.data is False and platform != "sim":
        raise UsageError(f"platform {platform!r} always moves data", hint="data off is for --platform sim")
    if config.family == "normal" and platform == "sim":
        raise UsageError(
            f"platform 'sim' has no inputs of family {config.family!r}",
            hint="leave family out: it is 'exact'",
        )
    if config.faults and platform != "sim":
        raise UsageError(f"platform {platform!r} injects no faults", hint="use --platform sim")
    comm_sms = HOST_COMM_SMS if on_host else GPU_COMM_SMS
    fitting = tuple(count for count in comm_sms if count < cluster.blocks)
    return config.model_copy(
        update={
            "platform": platform,
            "cluster": config.cluster or (HOST_CLUSTER if on_host else GPU_CLUSTER),
            "nodes": cluster.nodes,
            "ranks_per_node": cluster.ranks_per_node,
            "ranks_per_gpu": cluster.ranks_per_gpu,
            "family": config.family or FAMILIES[platform],
            "sizes": _sizes(config, on_host),
            "comm_sms": config.comm_sms or fitting,
            "transport": transport,
            "network_memory": network_memory,
            "samples": config.samples or SAMPLES[platform],
            "data": platform != "sim" if config.data is None else config.data,
        }
    )


def default_network_memory(platform: str, nodes: int, transport: str) -> str:
    """Return where the network's buffers lie unless the user says."""
    return CUDA_NETWORK_MEMORY[transport] if platform == "cuda" and nodes > 1 else "host"


def _sizes(config: SweepConfig, on_host: bool) -> tuple[int, ...] | dict[str, tuple[int, ...]] | None:
    """Return the sizes of all kernels, as one list if they have the same ones.

    A kernel whose default is a whole shape has none, and the plan takes that shape.
    """
    if config.shape is not None:
        return None
    sizes: dict[str, tuple[int, ...]] = {}
    for name in config.kernels:
        kernel = workload(name)
        own = ((kernel.small,) if isinstance(kernel.small, int) else ()) if on_host else kernel.sizes
        chosen = config.sizes_of(name) or own
        if chosen:
            sizes[name] = chosen
    alike = len(sizes) == len(config.kernels) and len(set(sizes.values())) == 1
    return next(iter(sizes.values())) if alike else sizes or None


def _check_skew(config: SweepConfig) -> None:
    if config.skew is None or any(isinstance(workload(name), Routed) for name in config.kernels):
        return
    routed = [name for name, kernel in KERNELS.items() if isinstance(kernel, Routed)]
    raise UsageError(
        f"nothing is routed in {' and '.join(config.kernels)}, so there is no skew",
        hint=f"leave skew out, also of a file; it is for {' and '.join(routed)}",
    )


def _check_pace(config: SweepConfig, platform: str) -> None:
    if config.pace is None:
        return
    if platform == "sim":
        raise UsageError(
            "platform 'sim' is not paced: its hardware profile has the rates",
            hint="leave --pace out, or choose another --cluster",
        )
    if platform == "host" and "nvlink" in config.pace:
        raise UsageError("platform 'host' has no NVLink to pace", hint="give --pace network=... alone")


def _platform(config: SweepConfig) -> str:
    return default_platform() if config.platform == "auto" else config.platform


def _transport(platform: str, nodes: int) -> str:
    if platform == "sim":
        return "sim"
    return "tcp" if nodes > 1 else "shm"
