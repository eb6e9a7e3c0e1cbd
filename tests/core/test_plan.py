import json
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from mkbench.core import defaults, environment, memory
from mkbench.core.cluster import cluster_names, load_cluster
from mkbench.core.config import load_config
from mkbench.core.errors import EnvironmentProblem, UsageError
from mkbench.core.pace import Pace
from mkbench.core.plan import Plan, Point, make_plan
from mkbench.core.toml import dump_toml
from mkbench.core.workloads import KERNELS

MakePlan = Callable[..., Plan]

CUDA = {"platform": "cuda", "cluster": "1x4-h200-virtual", "comm_sms": "8"}
TWO_NODES = CUDA | {"nodes": 2, "ranks_per_node": 2}
PUBLISHED = {
    "ag_gemm": (4096, 8192, 16384, 32768),
    "gemm_ar": (2048, 4096, 8192, 16384, 32768),
    "gemm_rs": (2048, 4096, 8192, 16384, 32768, 65536),
    "moe_dispatch_gemm": (8192, 16384, 32768, 65536, 131072),
    "ring_attention": (12288, 24576, 49152, 98304, 196608),
}
OTHER = {"device": "host", "host": "device"}


def test_points_come_by_size_then_static_by_partition_then_adaptive(make_small_plan: MakePlan) -> None:
    plan = make_small_plan(sizes="4096,2048", comm_sms="16,8")
    order = [(point.size, point.policy, point.comm_sms) for point in plan.points]
    assert order == [
        (2048, "static", 8),
        (2048, "static", 16),
        (2048, "adaptive", None),
        (4096, "static", 8),
        (4096, "static", 16),
        (4096, "adaptive", None),
    ]


def test_keys_are_distinct_and_say_what_was_set(make_small_plan: MakePlan) -> None:
    keys = [point.key for point in make_small_plan().points]
    assert keys[0] == "gemm_ar/m2048n2048k256/sim/1x8-h100/static/c8/seed7"
    assert keys[-1] == "gemm_ar/m2048n2048k256/sim/1x8-h100/adaptive/seed7"
    assert len(set(keys)) == len(keys)
    plan = make_small_plan(
        start_comm_sms=100, chunk_tiles=2, faults=("network_slow@5usx2",), policies="adaptive"
    )
    assert plan.points[0].key.endswith("/adaptive/seed7/start100/chunk2/fault-network_slow@5usx2")
    assert plan.points[0].start_comm_sms == 100


def test_a_point_knows_what_to_expect(make_small_plan: MakePlan) -> None:
    static = make_small_plan(cluster="2x8-h200-ib", sizes="4096").points[0]
    assert (static.ranks, static.blocks, static.shape.k) == (16, 132, 256)
    assert static.network_bytes == 2 * 32 * 16 * 65536
    assert static.start_comm_sms == static.comm_sms == 8
    assert static.lower_bound_us is not None
    assert (static.transport, static.samples, static.data) == ("sim", 1, False)


def test_defaults_of_the_simulator() -> None:
    plan = make_plan(load_config(None, {"platform": "sim"}))
    assert plan.config.sizes == PUBLISHED
    assert plan.config.comm_sms == tuple(range(2, 65, 2))
    assert plan.config.cluster == "1x8-h100"
    assert list(plan.config.kernels) == list(PUBLISHED)
    assert len(plan.points) == (4 + 5 + 6 + 5 + 5) * 33


@pytest.mark.parametrize("cluster", ["1x8-h100", "2x8-h200-ib"])
def test_published_shapes(cluster: str, make_small_plan: MakePlan) -> None:
    plan = make_small_plan(kernels=tuple(KERNELS), sizes=None, comm_sms="8", cluster=cluster)
    ranks = plan.cluster.ranks
    largest = {point.kernel: point.shape.to_json() for point in plan.points}
    assert largest == {
        "ag_gemm": {"m": 32768, "n": 32768 // ranks, "k": 32768},
        "gemm_ar": {"m": 32768, "n": 32768, "k": 32768 // ranks},
        "gemm_rs": {"m": 65536, "n": 65536, "k": 65536 // ranks},
        "moe_dispatch_gemm": {"t": 131072, "hidden": 7168, "inter": 2048, "experts": 256, "topk": 8},
        "ring_attention": {"b": 4, "h": 16, "g": 16, "s": 196608, "d": 128, "causal": 0},
    }


@pytest.mark.parametrize("cluster", cluster_names())
def test_defaults_fit_every_cluster(cluster: str) -> None:
    cpu = load_cluster(cluster).hardware.name == "cpu"
    platform = "host" if cpu else "cuda" if load_cluster(cluster).ranks_per_gpu > 1 else "sim"
    plan = make_plan(load_config(None, {"platform": platform, "cluster": cluster, "comm_sms": "2"}))
    assert {point.kernel for point in plan.points} == set(KERNELS)


def test_sizes_that_are_given_are_those_of_every_kernel(make_small_plan: MakePlan) -> None:
    plan = make_small_plan(kernels=("gemm_ar", "ag_gemm"), sizes="4K", policies="adaptive")
    assert [(point.kernel, point.size) for point in plan.points] == [("gemm_ar", 4096), ("ag_gemm", 4096)]
    assert plan.config.sizes == (4096,)


def test_a_kernel_that_is_not_in_the_table_has_its_own_sizes(make_small_plan: MakePlan) -> None:
    sizes = {"gemm_ar": (4096,), "gemm_rs": (2048,)}
    plan = make_small_plan(kernels=("gemm_ar", "ag_gemm"), sizes=sizes, policies="adaptive")
    assert plan.config.sizes == {"gemm_ar": (4096,), "ag_gemm": PUBLISHED["ag_gemm"]}
    assert [point.size for point in plan.points] == [4096, *PUBLISHED["ag_gemm"]]


@pytest.mark.parametrize(
    "settings",
    [
        {"platform": "sim"},
        {"platform": "sim", "kernels": ("ag_gemm",)},
        {"platform": "host"},
        {"platform": "host", "kernels": ("moe_dispatch_gemm",)},
        {"platform": "sim", "kernels": ("gemm_ar", "moe_dispatch_gemm"), "sizes": "2K", "skew": "0,0.5"},
    ],
)
def test_a_plan_is_read_back_as_it_was(settings: dict[str, Any]) -> None:
    plan = make_plan(load_config(None, {**settings, "comm_sms": "2"}))
    again = make_plan(load_config(None, tomllib.loads(dump_toml(plan.config.model_dump(mode="json")))))
    assert (again.config, again.points) == (plan.config, plan.points)


def test_a_skew_is_a_shape_of_its_own_where_tokens_are_routed(make_small_plan: MakePlan) -> None:
    kernels = ("gemm_ar", "moe_dispatch_gemm")
    plain = make_small_plan(kernels=kernels, sizes="2K", policies="adaptive").points
    plan = make_small_plan(kernels=kernels, sizes="2K", policies="adaptive", skew="1,0,0.29")
    assert plan.config.skew == (0.0, 0.29, 1.0)
    shapes = [(point.kernel, point.size, point.shape.to_json().get("skew")) for point in plan.points]
    assert shapes == [
        ("gemm_ar", 2048, None),
        *(("moe_dispatch_gemm", 2048, skew) for skew in (None, 29, 100)),
    ]
    assert plan.points[:2] == plain
    assert "topk8skew29/" in plan.points[2].key


def test_a_skew_joins_a_shape_that_has_none(make_small_plan: MakePlan) -> None:
    shape = {"t": 64, "hidden": 8, "inter": 8, "experts": 4, "topk": 2}
    plan = make_small_plan(kernels=("moe_dispatch_gemm",), sizes=None, shape=shape, skew="1", comm_sms="8")
    assert {point.shape.label for point in plan.points} == {"t64hidden8inter8experts4topk2skew100"}


def test_defaults_of_the_host() -> None:
    plan = make_plan(load_config(None, {"platform": "host"}))
    assert plan.config.comm_sms == (1, 2, 4)
    # Where no size is small the plan takes a small shape.
    assert plan.config.sizes == dict.fromkeys(("ag_gemm", "gemm_ar", "gemm_rs"), (512,))
    assert {point.kernel: point.size for point in plan.points if point.size is None} == {
        "moe_dispatch_gemm": None,
        "ring_attention": None,
    }
    assert max(point.ranks * point.flops_per_rank for point in plan.points) < 1e9
    point = plan.points[0]
    assert (point.cluster, point.nodes, point.ranks_per_node, point.transport) == ("host", 1, 2, "shm")
    assert point.data
    assert point.lower_bound_us is None
    two = make_plan(load_config(None, {"platform": "host", "nodes": 2})).points[0]
    assert (two.cluster, two.ranks, two.transport) == ("2x2-host", 4, "tcp")


def test_auto_is_the_simulator_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "gpu_visible", lambda: False)
    assert make_plan(load_config(None, {"sizes": "2K"})).config.platform == "sim"


def test_points_round_trip_through_json(make_small_plan: MakePlan) -> None:
    for point in make_small_plan(faults=("network_slow@5usx2",)).points:
        assert Point.from_json(json.loads(json.dumps(point.to_json()))) == point


def test_pace_is_of_a_gpu_and_divided_among_its_ranks(make_small_plan: MakePlan) -> None:
    plan = make_small_plan(**CUDA, pace="network=50,nvlink=450")
    for point in plan.points:
        assert (point.ranks_per_gpu, point.pace) == (4, Pace(450.0, 50.0))
        assert point.rank_pace == Pace(112.5, 12.5)
        assert point.key.endswith("/seed7/pace-nvlink=450,network=50")
        assert Point.from_json(json.loads(json.dumps(point.to_json()))) == point
    (without,) = make_small_plan(**CUDA, policies="static").points
    assert (without.pace, without.rank_pace) == (None, Pace())
    assert without.key.endswith("/seed7")


def test_the_host_paces_its_network(make_small_plan: MakePlan) -> None:
    point = make_small_plan(platform="host", nodes=2, comm_sms="2", pace="network=1").points[0]
    assert (point.pace, point.rank_pace) == (Pace(None, 1.0), Pace(None, 1.0))


@pytest.mark.parametrize(
    ("settings", "memory", "part"),
    [
        *(
            case
            for transport, usual in defaults.CUDA_NETWORK_MEMORY.items()
            for case in (
                (TWO_NODES | {"transport": transport}, usual, ""),
                (TWO_NODES | {"transport": transport, "network_memory": usual}, usual, ""),
                (
                    TWO_NODES | {"transport": transport, "network_memory": OTHER[usual]},
                    OTHER[usual],
                    f"/network-{OTHER[usual]}",
                ),
            )
        ),
        (CUDA, "host", ""),
        (CUDA | {"network_memory": "host"}, "host", ""),
        ({"platform": "host", "nodes": 2, "comm_sms": "2"}, "host", ""),
        ({"cluster": "2x8-h200-ib"}, "host", ""),
    ],
)
def test_network_memory_is_in_the_key_where_it_is_not_the_default(
    settings: dict[str, Any], memory: str, part: str, make_small_plan: MakePlan
) -> None:
    plan = make_small_plan(**settings)
    assert plan.config.network_memory == memory
    assert {point.network_memory for point in plan.points} == {memory}
    assert {point.key.partition("/seed7")[2] for point in plan.points} == {part}


def test_a_shape_in_full(make_small_plan: MakePlan) -> None:
    point = make_small_plan(sizes=None, shape={"m": 100, "n": 200, "k": 30}).points[0]
    assert point.size is None
    assert point.shape.label == "m100n200k30"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"comm_sms": "132"}, "132 communication SMs.*'1x8-h100': 1 to 131"),
        ({"comm_sms": "0:4"}, "0 communication SMs.*1 to 131"),
        ({"start_comm_sms": 500}, "500 communication SMs.*1 to 131"),
        ({"start_comm_sms": 0}, "0 communication SMs.*1 to 131"),
        ({"kernels": "gem_ar"}, "unknown kernel 'gem_ar'; did you mean 'gemm_ar'"),
        ({"cluster": "1x8-h1000"}, "unknown cluster"),
        ({"cluster": "host"}, "'host' has no GPU rates"),
        ({"nodes": 2}, "no network between its 2 nodes"),
        ({"transport": "tcp"}, "platform 'sim' has no transport 'tcp'"),
        ({"platform": "host", "cluster": "1x8-h100"}, "platform 'host' runs on this machine"),
        ({"platform": "host", "data": False, "comm_sms": "2"}, "always moves data"),
        ({"platform": "host", "comm_sms": "8"}, "'host': 1 to 7"),
        ({"platform": "host", "comm_sms": "2", "faults": ("a@1us",)}, "injects no faults"),
        ({"sizes": None, "shape": {"m": 1, "n": 1}}, "needs a positive k"),
        ({"skew": "0,1"}, "nothing is routed in gemm_ar, so there is no skew"),
        ({"family": "normal"}, "no inputs of family 'normal'"),
        ({"pace": "network=50"}, "platform 'sim' is not paced"),
        ({"platform": "host", "comm_sms": "2", "pace": "nvlink=450"}, "'host' has no NVLink to pace"),
        ({"network_memory": "device"}, "platform 'sim' has no network memory 'device'"),
        (
            {"platform": "host", "nodes": 2, "network_memory": "device"},
            "'host' has no network memory 'device'",
        ),
        (CUDA | {"network_memory": "device"}, "one node has no network memory 'device'"),
    ],
)
def test_what_no_machine_can_run(settings: dict[str, Any], message: str, make_small_plan: MakePlan) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make_small_plan(**settings)
    assert caught.value.hint


def test_a_size_beyond_the_gpu_says_need_and_have(make_small_plan: MakePlan) -> None:
    with pytest.raises(EnvironmentProblem, match=r"needs [\d.]+ GiB, one h100 has 74.5 GiB"):
        make_small_plan(sizes="256K")


@pytest.mark.parametrize("settings", [{"platform": "host", "comm_sms": "2"}, {"data": True}])
def test_heaps_of_all_ranks_must_fit_this_machine(
    settings: dict[str, Any], make_small_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = make_small_plan(**settings).points[0]
    need = point.ranks * memory.heap_bytes(point, data=True)
    monkeypatch.setattr(memory, "memory_available_bytes", lambda: need)
    make_small_plan(**settings)
    monkeypatch.setattr(memory, "memory_available_bytes", lambda: need - 1)
    with pytest.raises(EnvironmentProblem, match="this machine has"):
        make_small_plan(**settings)


def test_ranks_that_share_a_gpu_share_its_memory(make_small_plan: MakePlan) -> None:
    with pytest.raises(EnvironmentProblem, match=r"needs [\d.]+ GiB, for 4 ranks one h200 has"):
        make_small_plan(**CUDA, sizes="96K")


def test_network_buffers_count_where_they_lie(make_small_plan: MakePlan) -> None:
    heaps = {}
    for where in ("device", "host"):
        point = make_small_plan(**TWO_NODES, network_memory=where).points[0]
        whole, network = memory.heap_bytes(point, data=True), memory.network_bytes(point)
        # Of 128 tiles of 64 KiB two ranks own the half each: their own sums and those of the other node.
        assert network == 2 * 64 * 65536
        assert memory.shared_bytes(point) == network
        heaps[where] = whole - memory.gpu_bytes(point)
    assert heaps == {"device": 0, "host": network}
    simulated = make_small_plan(cluster="2x8-h200-ib").points[0]
    assert memory.gpu_bytes(simulated) == memory.heap_bytes(simulated, data=True)
    threads = make_small_plan(platform="host", nodes=2, comm_sms="2").points[0]
    assert memory.shared_bytes(threads) == memory.heap_bytes(threads, data=True)


def test_without_data_only_control_words_count(
    make_small_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = make_small_plan(sizes="32K").points[0]
    control = memory.heap_bytes(point, data=False)
    assert 0 < control < memory.heap_bytes(point, data=True) / 10
    monkeypatch.setattr(memory, "memory_available_bytes", lambda: 8 * control)
    make_small_plan(sizes="32K")
