"""Memory and arithmetic of the engine on a GPU, without ranks: a program that fails at the first fault."""

from __future__ import annotations

from types import SimpleNamespace

import cupy
import numpy as np
from cupy.cuda import runtime

from mkbench.core.bf16 import from_bf16, to_bf16
from mkbench.core.workloads.base import sum_products
from mkbench.dist import verify
from mkbench.platforms.cuda_engine import CudaEngine

#: Others may use the GPU a little; what is looked for is larger.
SLACK = 64 << 20


def engine(heap_bytes: int) -> CudaEngine:
    bare = CudaEngine.__new__(CudaEngine)
    bare._heap, bare._point = runtime.malloc(heap_bytes), SimpleNamespace(ranks_per_gpu=1)
    return bare


def free_bytes() -> int:
    return int(runtime.memGetInfo()[0])


def rounds_as_numpy_does() -> None:
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (upper | np.uint32(lower)).view(np.float32)
        rounded = to_bf16(cupy.asarray(values))
        assert np.array_equal(cupy.asnumpy(rounded), to_bf16(values))
        wide = cupy.asnumpy(from_bf16(rounded)).view(np.uint32)
        assert np.array_equal(wide, from_bf16(to_bf16(values)).view(np.uint32))


def compares_as_numpy_does(engine: CudaEngine) -> None:
    rows, columns, pitch = 301, 500, 504
    reference = np.random.default_rng(1).integers(-99, 99, (rows, columns)).astype(np.float32)
    reference[5, 5] = np.nan
    out = np.zeros((rows, pitch), dtype=np.uint16)
    kept = engine.keep(reference)
    for wrong in ([], [(0, 0)], [(300, 499)], [(7, 499), (8, 0), (200, 3)]):
        for poison in (verify.POISON, 0x1234):
            out[:, :columns] = to_bf16(reference)
            for place in wrong:
                out[place] = poison
            engine.write(128, out.reshape(-1).view(np.uint8))
            for tolerance in (None, 0.25):
                for verify._BAND in (1000, 1 << 24):
                    expected = verify.compare(3, out[:, :columns], reference, tolerance)
                    for where in (kept, reference):
                        with engine.view(128, out.nbytes, where) as heap:
                            assert isinstance(heap, type(where))
                            found = heap.view(np.uint16).reshape(rows, -1)[:, :columns]
                            assert verify.compare(3, found, where, tolerance) == expected
                            del found


def fills_exactly(engine: CudaEngine) -> None:
    engine.fill(0, 4096, 7)
    engine.fill(128, 1001, 0xFF)
    assert engine.read(0, 4096).tolist() == [7] * 128 + [0xFF] * 1001 + [7] * (4096 - 1129)


def adds_up_products(engine: CudaEngine) -> None:
    rng = np.random.default_rng(2)
    pairs = [
        (
            rng.integers(-2, 3, (130, 70)).astype(np.float32),
            rng.integers(-2, 3, (70, 200)).astype(np.float32),
        )
        for _ in range(3)
    ]
    for precision in (np.float32, np.float64):
        found = engine.sum_products(iter(pairs), precision)
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.float32
        assert np.array_equal(found, sum_products(pairs, precision))


def gives_memory_back(engine: CudaEngine, heap_bytes: int) -> None:
    side = 16384
    before = free_bytes()
    kept = engine.keep(np.zeros((side, side), dtype=np.float32))
    assert isinstance(kept, cupy.ndarray)
    assert before - free_bytes() >= kept.nbytes
    with engine.view(0, heap_bytes, kept) as heap:
        found = heap.view(np.uint16).reshape(side, -1)
        verify.compare(0, found, kept, None)
        del found, heap
    assert before - free_bytes() < kept.nbytes + SLACK
    del kept
    assert before - free_bytes() < SLACK
    ones = np.ones((side, 64), dtype=np.float32)
    assert float(engine.sum_products([(ones, ones.T)], np.float64)[9, 9]) == 64
    assert before - free_bytes() < SLACK
    engine._point = SimpleNamespace(ranks_per_gpu=1_000_000)
    values = np.zeros((side, 16), dtype=np.float32)
    assert engine.keep(values) is values


def main() -> None:
    heap_bytes = 2 * 16384 * 16384
    bare = engine(heap_bytes)
    rounds_as_numpy_does()
    compares_as_numpy_does(bare)
    fills_exactly(bare)
    adds_up_products(bare)
    gives_memory_back(bare, heap_bytes)


if __name__ == "__main__":
    main()
