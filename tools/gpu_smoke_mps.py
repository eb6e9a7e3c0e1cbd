"""Try virtual clusters on one GPU: our MPS daemon, green contexts, the residency audit. Prints a short table.

    python3 tools/gpu_smoke_mps.py [RANKS ...]      (2 and 4; about half a minute)

Needs CuPy, cuda-bindings, mpi4py, an mpiexec, and NVRTC or nvcc.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mkbench.core.errors import MkbenchError  # noqa: E402
from mkbench.dist.launcher import find_mpiexec  # noqa: E402
from mkbench.dist.mps import MpsDaemon  # noqa: E402

THREADS, SHARED_BYTES = 256, 220_000
SHORT_NS = 200_000_000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "residency_audit.cubin"
        cubin.write_bytes(compiled(cubin))
        for ranks in [int(word) for word in sys.argv[1:]] or [2, 4]:
            with_daemon(ranks, cubin)
    killed_owner()


def compiled(scratch: Path) -> bytes:
    """The audit's cubin for this GPU, by NVRTC as mkbench does it, else by nvcc."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    capability = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    arch = f"sm_{capability.replace('.', '')}"
    try:
        from mkbench.build.nvrtc import compile_cubin
        from mkbench.platforms.residency import KERNEL

        cubin = compile_cubin(KERNEL, arch)
        print(f"compiled by NVRTC for {arch}")
        return cubin
    except Exception as error:
        print(f"NVRTC: {type(error).__name__}: {error}; trying nvcc")
    source = ROOT / "kernels" / "cuda" / "residency_audit.cu"
    subprocess.run(["nvcc", "-std=c++20", f"-arch={arch}", "-cubin", "-o", scratch, source], check=True)
    return scratch.read_bytes()


def with_daemon(ranks: int, cubin: Path) -> None:
    begin = time.monotonic()
    with MpsDaemon() as daemon:
        directory = daemon.directory
        started = time.monotonic()
        mpiexec = find_mpiexec()
        extra = ["--mca", "btl", "^openib"] if mpiexec.flavour == "Open MPI" else []
        rank = [sys.executable, __file__, "--rank", str(cubin)]
        command = [str(mpiexec.path), *mpiexec.arguments, *extra, "-n", str(ranks), *rank]
        environment = daemon.rank_environment()
        environment["MKBENCH_SMOKE_DAEMON"] = str(directory)
        environment.setdefault("CUDA_MODULE_LOADING", "EAGER")
        # A group of its own, so that no rank is left when it takes too long.
        job = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            status = job.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            status = job.wait()
        left_before = daemon.processes()
        ending = time.monotonic()
    stopped = time.monotonic() - ending
    print(
        f"{ranks} ranks: exit {status}; daemon started in {started - begin:.2f} s, "
        f"{len(left_before)} processes (control and server: 2 expected), stopped in {stopped:.2f} s; "
        f"directory {'LEFT' if directory.exists() else 'gone'}; processes left: {mps_processes()}",
        flush=True,
    )


def killed_owner() -> None:
    """SIGKILL for a process that owns a daemon: its watcher has to end the daemon."""
    code = (
        f"import sys, signal; sys.path.insert(0, {str(ROOT)!r})\n"
        "from mkbench.dist.mps import MpsDaemon\n"
        "with MpsDaemon() as daemon:\n    print(daemon.directory, flush=True); signal.pause()\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    directory = Path(owner.stdout.readline().strip())
    owner.kill()
    owner.wait()
    begin = time.monotonic()
    while directory.exists() and time.monotonic() - begin < 25:
        time.sleep(0.05)
    state = "LEFT" if directory.exists() else f"gone after {time.monotonic() - begin:.2f} s"
    print(f"owner killed: directory {state}; processes left: {mps_processes()}", flush=True)


def mps_processes() -> list[str]:
    found = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=False).stdout
    return [
        line.strip() for line in found.splitlines() if "nvidia-cuda-mps" in line and "defunct" not in line
    ]


def rank_main(cubin: bytes) -> None:
    from cuda.bindings import driver
    from mpi4py import MPI

    from mkbench.core.partition import group_sms
    from mkbench.platforms.green_context import GreenContext, require_mps
    from mkbench.platforms.residency import Attendance, Grid, audit, require_all

    world = MPI.COMM_WORLD
    ranks, wanted = range(world.size), group_sms(132, world.size)

    def report(what: str, expected: str, action: Callable[[], Any]) -> Any:
        """Try on all ranks; rank 0 prints what came out. If one fails, all should."""
        world.Barrier()
        begin = time.monotonic()
        try:
            result: Any = action()
        except MkbenchError as error:
            result = f"{type(error).__name__}: {error}"
        except Exception:
            result = traceback.format_exc().strip().splitlines()[-1]
        ms = 1e3 * (time.monotonic() - begin)
        if world.rank == 0:
            if isinstance(result, list) and isinstance(result[0], Attendance):
                text = " ".join(f"{a.resident}/{a.met}/{a.blocks}" for a in result)
                try:
                    require_all(result, ranks)
                except MkbenchError as error:
                    text += f"  [{error}]"
            else:
                text = str(result)
            print(f"  {what:<46} {text}  ({ms:.0f} ms; expected {expected})", flush=True)
        return result

    def meet(blocks: int, stream: int = 0, deadline_ns: int = SHORT_NS) -> list[Attendance]:
        return audit(
            world, ranks, cubin, Grid(blocks, THREADS, SHARED_BYTES), stream=stream, deadline_ns=deadline_ns
        )

    def is_current(context: int) -> bool:
        return int(driver.cuCtxGetCurrent()[1]) == context

    if world.rank == 0:
        print(f"{world.size} ranks, each: resident/met/blocks", flush=True)
    report("is a client of MPS", "None", lambda: require_mps(0))
    green = report("green context", f"{wanted} SMs", lambda: GreenContext.create(0, world.size, world.rank))
    if not isinstance(green, GreenContext):
        return
    full, over = f"all {green.sms}", f"{green.sms} of {green.sms + 1}"
    report("its stream", full, lambda: meet(green.sms, green.stream, 3_000_000_000))
    report("its stream again, warm", full, lambda: meet(green.sms, green.stream, 3_000_000_000))
    report("its stream, a block too many", over, lambda: meet(green.sms + 1, green.stream))
    report("no green context, a block too many", "?", lambda: meet(green.sms + 1))
    report("no green context, all SMs for everybody", "a refusal", lambda: meet(132))

    import cupy

    def set_current() -> bool:
        driver.cuCtxSetCurrent(driver.CUcontext(green.context))
        return is_current(green.context)

    def after_synchronize() -> bool:
        cupy.cuda.Device().synchronize()
        return is_current(green.context)

    report("context set current", "True", set_current)
    report("still current after Device().synchronize()", "False would be a trap", after_synchronize)
    report(
        "context current, null stream, a block too many",
        over,
        lambda: (set_current(), meet(green.sms + 1))[1],
    )
    report("its stream after all that", full, lambda: meet(green.sms, green.stream, 3_000_000_000))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(Path(sys.argv[2]).read_bytes())
    else:
        main()
