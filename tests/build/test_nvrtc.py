"""The CUDA side without a GPU: it compiles, and the machine code keeps what the protocol needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from probes import Access, copy_kernels, probe, probe_kernel

from mkbench.build import nvrtc
from mkbench.build.cache import Cache
from mkbench.build.disassembly import resources, sass
from mkbench.build.errors import BuildFailed
from mkbench.build.nvrtc import compile_cubin
from mkbench.core.errors import EnvironmentProblem

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")

LOOK_GPU: Access = ("load", "relaxed", "GPU")
LOOK: Access = ("load", "relaxed", "SYS")
ACQUIRE: Access = ("load", "acquire", "SYS")
ACQUIRE_GPU: Access = ("load", "acquire", "GPU")
RELEASE: Access = ("store", "release", "SYS")
RELEASE_GPU: Access = ("store", "release", "GPU")
COUNT: Access = ("atomic", "acq_rel", "SYS")
COUNT_GPU: Access = ("atomic", "acq_rel", "GPU")
TICKET: Access = ("atomic", "relaxed", "GPU")
SECOND_WORD: Access = ("store", "relaxed", "SYS")  # of a command, before the first is released

# Every order and scope that kernels may name.
PRIMITIVES: dict[str, tuple[str, set[Access]]] = {
    "load_relaxed_gpu": (
        "*next(p) = load<Order::relaxed, Scope::gpu>(block, word(p));",
        {("load", "relaxed", "GPU")},
    ),
    "load_relaxed_system": (
        "*next(p) = load<Order::relaxed, Scope::system>(block, word(p));",
        {("load", "relaxed", "SYS")},
    ),
    "load_acquire_gpu": (
        "*next(p) = load<Order::acquire, Scope::gpu>(block, word(p));",
        {("load", "acquire", "GPU")},
    ),
    "load_acquire_system": (
        "*next(p) = load<Order::acquire, Scope::system>(block, word(p));",
        {("load", "acquire", "SYS")},
    ),
    "store_relaxed_gpu": (
        "store<Order::relaxed, Scope::gpu>(block, word(p), 1);",
        {("store", "relaxed", "GPU")},
    ),
    "store_relaxed_system": (
        "store<Order::relaxed, Scope::system>(block, word(p), 1);",
        {("store", "relaxed", "SYS")},
    ),
    "store_release_gpu": (
        "store<Order::release, Scope::gpu>(block, word(p), 1);",
        {("store", "release", "GPU")},
    ),
    "store_release_system": (
        "store<Order::release, Scope::system>(block, word(p), 1);",
        {("store", "release", "SYS")},
    ),
    "add_relaxed_gpu": (
        "*next(p) = fetch_add<Order::relaxed, Scope::gpu>(block, word(p), 1);",
        {("atomic", "relaxed", "GPU")},
    ),
    "swap_relaxed_gpu": (
        "u64 seen = 1; compare_exchange<Order::relaxed, Scope::gpu>(block, word(p), seen, 2);",
        {("atomic", "relaxed", "GPU")},
    ),
    "add_relaxed_system": (
        "*next(p) = fetch_add<Order::relaxed, Scope::system>(block, word(p), 1);",
        {("atomic", "relaxed", "SYS")},
    ),
    "swap_relaxed_system": (
        "u64 seen = 1; compare_exchange<Order::relaxed, Scope::system>(block, word(p), seen, 2);",
        {("atomic", "relaxed", "SYS")},
    ),
    "add_acq_rel_gpu": (
        "*next(p) = fetch_add<Order::acq_rel, Scope::gpu>(block, word(p), 1);",
        {("atomic", "acq_rel", "GPU")},
    ),
    "swap_acq_rel_gpu": (
        "u64 seen = 1; compare_exchange<Order::acq_rel, Scope::gpu>(block, word(p), seen, 2);",
        {("atomic", "acq_rel", "GPU")},
    ),
    "add_acq_rel_system": (
        "*next(p) = fetch_add<Order::acq_rel, Scope::system>(block, word(p), 1);",
        {("atomic", "acq_rel", "SYS")},
    ),
    "swap_acq_rel_system": (
        "u64 seen = 1; compare_exchange<Order::acq_rel, Scope::system>(block, word(p), seen, 2);",
        {("atomic", "acq_rel", "SYS")},
    ),
}

# The device library's ways to order things, and all that each does to words that others see.
LIBRARY: dict[str, tuple[str, set[Access]]] = {
    "signals": ("signal<Scope::system>(block, {word(p), 0, 0}, 1);", {RELEASE}),
    "signals_gpu": ("signal<Scope::gpu>(block, {word(p), 0, 0}, 1);", {RELEASE_GPU}),
    "signals_each": (
        "signal_each<Scope::system>(block, p.ranks, [&](i32 i) { return Flag{word(p) + i, 0, 0}; }, 1);",
        {RELEASE},
    ),
    "waits": ("wait_all<Scope::system>(block, {word(p), 0, 0, p.ranks}, 1);", {ACQUIRE}),
    "looks": ("*next(p) = reached_all<Scope::system>(block, {word(p), 0, 0, p.ranks}, 1);", {ACQUIRE}),
    "counts": ("*next(p) = completes<Scope::system>(block, word(p), 1, 2);", {LOOK, COUNT}),
    "counts_gpu": ("*next(p) = completes<Scope::gpu>(block, word(p), 1, 2);", {LOOK_GPU, COUNT_GPU}),
    "claims": ("*next(p) = claim(block, word(p), 1);", {LOOK_GPU, TICKET}),
    "claims_if": ("*next(p) = claim_if(block, word(p), 1, 2);", {LOOK_GPU, TICKET}),
    "paces": ("*next(p) = pace(block, word(p), p.pace_fs_per_byte, 1, 2);", {LOOK_GPU, TICKET}),
    "pushes": (
        "CommandQueue{word(p), next(p), next(p), next(p), 1, 2}.push(block, {});",
        {ACQUIRE, TICKET, SECOND_WORD, RELEASE},
    ),
}

# Parts of the kernels likewise: system scope for what other ranks and the proxy read or write, gpu scope for
# what stays on the own GPU. Relaxed accesses at gpu scope, which claim and count, are left out.
STATISTICS: set[Access] = {LOOK_GPU, TICKET, ("store", "relaxed", "GPU")}
PARTS: dict[str, dict[str, tuple[str, set[Access]]]] = {
    "ag_gemm": {
        "next": ("i32 tile = 0; kernel.next(tile);", {ACQUIRE}),
        "local": ("kernel.local(p.m);", {ACQUIRE, RELEASE, LOOK, COUNT, SECOND_WORD}),
        "receive": ("kernel.receive(p.m);", {ACQUIRE, RELEASE, LOOK, COUNT, SECOND_WORD}),
        "leave": ("kernel.leave();", {ACQUIRE, RELEASE}),
    },
    "gemm_ar": {
        "compute_done": ("kernel.done(p.m);", {RELEASE}),
        "local": ("kernel.local(p.m);", {ACQUIRE, RELEASE, RELEASE_GPU, LOOK, COUNT, COUNT_GPU, SECOND_WORD}),
        "send": ("kernel.send(p.m);", {ACQUIRE, RELEASE, SECOND_WORD}),
        "receive": ("kernel.receive(p.m);", {ACQUIRE, RELEASE, LOOK, COUNT, COUNT_GPU, SECOND_WORD}),
        "say_finished": ("kernel.say_finished();", {RELEASE}),
    },
    "gemm_rs": {
        "compute_done": ("kernel.done(p.m);", {RELEASE}),
        "local": ("kernel.local(p.m);", {ACQUIRE, RELEASE, RELEASE_GPU, COUNT_GPU, SECOND_WORD}),
        "send": ("kernel.send(p.m, p.n, p.k);", {ACQUIRE, RELEASE, SECOND_WORD}),
        "receive": ("kernel.receive(p.m);", {ACQUIRE, RELEASE, COUNT_GPU, SECOND_WORD}),
        "say_finished": ("kernel.say_finished();", {RELEASE}),
    },
    "moe_dispatch_gemm": {
        "route": ("kernel.route(p.shard);", {ACQUIRE, RELEASE, RELEASE_GPU, LOOK, COUNT, SECOND_WORD}),
        "take": ("kernel.take(p.shard);", {ACQUIRE, RELEASE, LOOK, COUNT}),
        "plan": ("kernel.plan();", {ACQUIRE, RELEASE, RELEASE_GPU}),
        "send": ("kernel.send(p.shard);", {ACQUIRE, ACQUIRE_GPU, RELEASE, SECOND_WORD}),
        "land": (
            "kernel.land(p.shard);",
            {ACQUIRE, ACQUIRE_GPU, RELEASE, LOOK, COUNT, COUNT_GPU, SECOND_WORD},
        ),
        "gather": (
            "kernel.gather_segment(p.shard > 1, p.shard);",
            {ACQUIRE, ACQUIRE_GPU, RELEASE, RELEASE_GPU, LOOK, COUNT, COUNT_GPU},
        ),
        "next": ("i32 tile = 0; kernel.next(tile);", {ACQUIRE_GPU}),
    },
    "ring_attention": {
        "next_keys": ("KeyTile keys{}; kernel.next_keys(keys, p.s > 1);", {ACQUIRE}),
        "looks_ahead": ("*reinterpret_cast<u64*>(p.heap[0]) = kernel.is_ready(p.s);", {ACQUIRE}),
        "local": ("kernel.local(p.s);", {ACQUIRE, RELEASE, LOOK, COUNT, SECOND_WORD}),
        "receive": ("kernel.receive(p.s);", {ACQUIRE, RELEASE, LOOK, COUNT, SECOND_WORD}),
    },
}

# Each edit makes one signal, wait, count or command too weak:
# (kernel or None for the library, file, text, replacement, where the machine code shows it).
WEAKENED: dict[str, tuple[str | None, str, str, str, str]] = {
    "ready-signal": (
        "gemm_ar",
        "mk/reduction.h",
        "signal<Scope::system>(block, map.told(map.owner(tile), ready",
        "signal<Scope::gpu>(block, map.told(map.owner(tile), ready",
        "compute_done",
    ),
    "finished-signal": (
        "gemm_ar",
        "mk/reduction.h",
        "signal<Scope::system>(block, map.told(i, finished",
        "signal<Scope::gpu>(block, map.told(i, finished",
        "say_finished",
    ),
    "ready-wait": (
        "gemm_ar",
        "gemm_ar.cu",
        "wait_all<Scope::system>(block, map.told(p.local_rank, ready",
        "wait_all<Scope::gpu>(block, map.told(p.local_rank, ready",
        "local",
    ),
    "arrived-wait": (
        "gemm_ar",
        "gemm_ar.cu",
        "if (!wait_all<Scope::system>(block, map.received(arrived",
        "if (!wait_all<Scope::gpu>(block, map.received(arrived",
        "receive",
    ),
    "broadcast-count": (
        "gemm_ar",
        "gemm_ar.cu",
        "completes<Scope::system>",
        "completes<Scope::gpu>",
        "receive",
    ),
    "scatter-ready-wait": (
        "gemm_rs",
        "gemm_rs.cu",
        "wait_all<Scope::system>(block, map.told(p.local_rank, ready",
        "wait_all<Scope::gpu>(block, map.told(p.local_rank, ready",
        "local",
    ),
    "scatter-credit-wait": (
        "gemm_rs",
        "gemm_rs.cu",
        "wait_all<Scope::system>(block, map.credit_of(node)",
        "wait_all<Scope::gpu>(block, map.credit_of(node)",
        "local",
    ),
    "scatter-arrived-wait": (
        "gemm_rs",
        "gemm_rs.cu",
        "if (!wait_all<Scope::system>(block, map.received(arrived",
        "if (!wait_all<Scope::gpu>(block, map.received(arrived",
        "receive",
    ),
    "gathered-wait": (
        "ag_gemm",
        "ag_gemm.cu",
        "wait_all<Scope::system>(block, input(place)",
        "wait_all<Scope::gpu>(block, input(place)",
        "next",
    ),
    "gather-arrived-wait": (
        "ag_gemm",
        "mk/all_gather.h",
        "if (!wait_all<Scope::system>(block, map.arrived_of(from)",
        "if (!wait_all<Scope::gpu>(block, map.arrived_of(from)",
        "receive",
    ),
    "gathered-count": (
        "ag_gemm",
        "mk/all_gather.h",
        "completes<Scope::system>(block, map.copied_own",
        "completes<Scope::gpu>(block, map.copied_own",
        "local",
    ),
    "keys-wait": (
        "ring_attention",
        "ring_attention.cu",
        "wait_all<Scope::system>(block, input(shard",
        "wait_all<Scope::gpu>(block, input(shard",
        "next_keys",
    ),
    "keys-look": (
        "ring_attention",
        "ring_attention.cu",
        "reached<Scope::system>(block, next",
        "reached<Scope::gpu>(block, next",
        "next_keys",
    ),
    "dispatch-routed-wait": (
        "moe_dispatch_gemm",
        "moe_dispatch_gemm.cu",
        "wait_all<Scope::system>(block, map.told(p.local_rank, routed",
        "wait_all<Scope::gpu>(block, map.told(p.local_rank, routed",
        "plan",
    ),
    "dispatch-landed-wait": (
        "moe_dispatch_gemm",
        "moe_dispatch_gemm.cu",
        "!wait_all<Scope::system>(block, landing_of(what)",
        "!wait_all<Scope::gpu>(block, landing_of(what)",
        "gather",
    ),
    "dispatch-told-count": (
        "moe_dispatch_gemm",
        "moe_dispatch_gemm.cu",
        "completes<Scope::system>(block, &map.counters().told",
        "completes<Scope::gpu>(block, &map.counters().told",
        "take",
    ),
    "dispatch-landed-count": (
        "moe_dispatch_gemm",
        "moe_dispatch_gemm.cu",
        "completes<Scope::system>(block, map.chunks_here",
        "completes<Scope::gpu>(block, map.chunks_here",
        "land",
    ),
    "signal-order": (
        None,
        "mk/flags.h",
        "store<Order::release, scope>",
        "store<Order::relaxed, scope>",
        "signals",
    ),
    "wait-order": (
        None,
        "mk/flags.h",
        "first_below<Order::acquire, scope>",
        "first_below<Order::relaxed, scope>",
        "waits",
    ),
    "count-order": (
        None,
        "mk/flags.h",
        "epoch_add<Order::acq_rel, scope>",
        "epoch_add<Order::relaxed, scope>",
        "counts",
    ),
    "command-scope": (
        None,
        "mk/command_queue.h",
        "store<Order::release, Scope::system>",
        "store<Order::release, Scope::gpu>",
        "pushes",
    ),
    "command-order": (
        None,
        "mk/command_queue.h",
        "store<Order::release, Scope::system>",
        "store<Order::relaxed, Scope::system>",
        "pushes",
    ),
    "tail-order": (
        None,
        "mk/command_queue.h",
        "load<Order::acquire, Scope::system>",
        "load<Order::relaxed, Scope::system>",
        "pushes",
    ),
}


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


def differences(
    kernel: str | None,
    expected: Mapping[str, tuple[str, set[Access]]],
    kernels: Path,
    arch: str,
    cache: Cache,
) -> dict[str, set[Access]]:
    """Where the machine code does other things than expected, and which it does too much or not."""
    bodies = {name: body for name, (body, _) in expected.items()}
    if kernel is not None:
        probed = probe_kernel(kernel, bodies, kernels, arch, cache)
        seen = {name: found - STATISTICS for name, found in probed.items()}
    else:
        seen = probe(bodies, kernels, arch, cache)
    return {name: wrong for name, (_, accesses) in expected.items() if (wrong := seen[name] ^ accesses)}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kernel", PARTS)
def test_uses_tensor_cores_and_no_local_memory(kernel: str, arch: str, shared_cache: Cache) -> None:
    cubin = compile_cubin(kernel, arch, cache=shared_cache)
    used = resources(cubin)[kernel]
    assert (used.stack, used.local) == (0, 0)
    assert used.registers <= 255
    code = sass(cubin)[kernel]
    opcodes = {match[0] for text in code if (match := re.search(r"[A-Z][A-Z0-9]{2,}(\.\w+)*", text))}
    assert any(opcode.startswith("HMMA.16816.F32.BF16") for opcode in opcodes)
    assert any(opcode.startswith("LDSM") for opcode in opcodes), "ldmatrix"
    assert any(opcode.startswith("LDGSTS") for opcode in opcodes), "cp.async"
    assert not [text for text in code if re.search(r"\b(LDL|STL)\b", text)]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_order_and_scope_becomes_its_instruction(
    arch: str, tmp_path: Path, shared_cache: Cache
) -> None:
    assert differences(None, {**PRIMITIVES, **LIBRARY}, copy_kernels(tmp_path, {}), arch, shared_cache) == {}


@pytest.mark.parametrize("kernel", PARTS)
def test_parts_use_the_scopes_of_the_protocol(kernel: str, tmp_path: Path, shared_cache: Cache) -> None:
    assert differences(kernel, PARTS[kernel], copy_kernels(tmp_path, {}), "sm_90a", shared_cache) == {}


@pytest.mark.parametrize("name", WEAKENED)
def test_weaker_protocol_shows_in_the_machine_code(name: str, tmp_path: Path, shared_cache: Cache) -> None:
    kernel, file, text, replacement, where = WEAKENED[name]
    kernels = copy_kernels(tmp_path, {file: (text, replacement)})
    expected = {where: (LIBRARY if kernel is None else PARTS[kernel])[where]}
    assert differences(kernel, expected, kernels, "sm_90a", shared_cache).keys() == {where}


def test_local_memory_is_noticed(tmp_path: Path, shared_cache: Cache) -> None:
    body = "u64 kept[64]; for (i32 i = 0; i < p.ranks; ++i) kept[i] = *word(p); *word(p) = kept[p.rank];"
    kernels = copy_kernels(tmp_path, {})
    probe({"spills": body}, kernels, "sm_90a", shared_cache)
    cubin = compile_cubin("probe", "sm_90a", sources=kernels, cache=shared_cache)
    assert resources(cubin)["spills"].stack > 0
    assert any("STL" in text for text in sass(cubin)["spills"])


def test_compile_error_names_line_and_log(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "toy.cu").write_text('extern "C" __global__ void toy() { missing(); }\n')
    with pytest.raises(BuildFailed, match=r"toy\.cu\(1\): error") as caught:
        compile_cubin("toy", sources=tmp_path, cache=cache)
    assert "missing" in caught.value.log_path.read_text()


def test_defines_and_architecture_are_part_of_the_key(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "toy.cu").write_text('extern "C" __global__ void toy(int* p) { *p = MK_VALUE; }\n')

    def built(arch: str, value: int) -> bytes:
        return compile_cubin("toy", arch, defines={"MK_VALUE": value}, sources=tmp_path, cache=cache)

    assert len({built("sm_80", 1), built("sm_80", 2), built("sm_90a", 1)}) == 3
    assert built("sm_80", 1) == built("sm_80", 1)


def test_missing_nvrtc_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda import pathfinder

    def refuse(name: str) -> None:
        raise pathfinder.DynamicLibNotFoundError(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", refuse)
    nvrtc.load_nvrtc.cache_clear()
    with pytest.raises(EnvironmentProblem, match="NVRTC") as caught:
        nvrtc.load_nvrtc()
    assert "mkbench[cuda13]" in str(caught.value.hint)
