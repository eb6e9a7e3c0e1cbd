"""NVRTC front end: a kernel as a cubin. Needs neither a GPU nor a driver, nor CUDA's headers."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from mkbench.build.cache import Cache, digest
from mkbench.build.errors import BuildFailed
from mkbench.build.sources import fingerprint, included_files, kernel_source
from mkbench.core.errors import EnvironmentProblem
from mkbench.core.resources import kernels_dir

_MISSING_HINT = "run `pip install 'mkbench[cuda13]'` (or cuda12)"
# Lambdas of kernel files are device functions; 13.0 takes generic ones only when told so.
_FLAGS = ("-std=c++20", "-default-device")


def compile_cubin(
    kernel: str,
    arch: str = "sm_90a",
    *,
    defines: Mapping[str, str | int] | None = None,
    sources: Path | None = None,
    cache: Cache | None = None,
) -> bytes:
    """The cubin of <kernel>.cu for `arch` (sm_80, sm_90a, sm_100a). Raises what `cubin_file` raises."""
    return cubin_file(kernel, arch, defines=defines, sources=sources, cache=cache).read_bytes()


def cubin_file(
    kernel: str,
    arch: str = "sm_90a",
    *,
    defines: Mapping[str, str | int] | None = None,
    sources: Path | None = None,
    cache: Cache | None = None,
) -> Path:
    """The file with the cubin, compiled unless the cache has it.

    Raises UsageError for an unknown kernel, EnvironmentProblem without NVRTC, BuildFailed with the first
    error.
    """
    root = kernels_dir() if sources is None else sources
    store = Cache() if cache is None else cache
    source = kernel_source(kernel, root)
    nvrtc = load_nvrtc()
    flags = (
        f"-arch={arch}",
        *_FLAGS,
        *(f"-D{name}={value}" for name, value in sorted((defines or {}).items())),
    )
    files = included_files(source, root)
    key = digest(["cubin", nvrtc.version, *flags, "--", *fingerprint(files, root)])

    def build(target: Path) -> None:
        cubin, log = nvrtc.compile(source, (*flags, f"-I{root}"))
        if cubin is None:
            raise BuildFailed(f"{source.name} for {arch}", log, store.write_log(key, log))
        target.write_bytes(cubin)

    return store.get(key, ".cubin", build)


class Nvrtc:
    """The few calls of libnvrtc that compiling takes, by ctypes."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"NVRTC {major.value}.{minor.value} {Path(path).resolve().name}"

    def compile(self, source: Path, options: tuple[str, ...]) -> tuple[bytes | None, str]:
        """(cubin, log); no cubin if the compiler refused the source."""
        program = ctypes.c_void_p()
        arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source.read_bytes(),
            source.name.encode(),
            0,
            None,
            None,
        )
        try:
            status = self._library.nvrtcCompileProgram(program, len(options), arguments)
            log = self._fetch("nvrtcGetProgramLog", program).rstrip(b"\0").decode(errors="replace")
            if status != 0:
                return None, log or self._name_of(status)
            return self._fetch("nvrtcGetCUBIN", program), log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _fetch(self, getter: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{getter}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(getter, program, buffer)
        return buffer.raw

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, function)(*arguments)
        if status != 0:
            raise EnvironmentProblem(f"{function}: {self._name_of(status)}", hint=_MISSING_HINT)

    def _name_of(self, status: int) -> str:
        name: bytes = self._library.nvrtcGetErrorString(status)
        return name.decode()


@lru_cache
def load_nvrtc() -> Nvrtc:
    """NVRTC of the CUDA wheels, of conda or of the system's CUDA.

    Raises EnvironmentProblem if there is none.
    """
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError as error:
        raise EnvironmentProblem(
            "no NVRTC: package cuda-pathfinder is missing", hint=_MISSING_HINT
        ) from error
    try:
        path = load_nvidia_dynamic_lib("nvrtc").abs_path
    except (DynamicLibNotFoundError, RuntimeError) as error:
        raise EnvironmentProblem("no NVRTC, the compiler of CUDA kernels", hint=_MISSING_HINT) from error
    return Nvrtc(str(path))
