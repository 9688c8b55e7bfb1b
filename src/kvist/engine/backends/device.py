"""What differs between devices, in one place: names, dtypes, memory, threads and fast paths."""

import ctypes
import os

import torch

from kvist.base.errors import ConfigError
from kvist.base.units import Bytes
from kvist.geometry.groups import Dtype

_DTYPES: dict[Dtype, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}


def open_device(name: str) -> torch.device:
    """The device of this name.

    Raises:
        ConfigError: there is no such device here.
    """
    if name == "cpu":
        return torch.device("cpu")
    if name == "cuda" and torch.cuda.is_available():
        return torch.device("cuda")
    raise ConfigError(f"device {name!r} is not available here; use cpu" + ("" if name == "cuda" else " or cuda"))


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """Torch's name for a dtype."""
    return _DTYPES[dtype]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device says that memory is short; on a CPU torch has no class for that."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "allocate memory" in str(error)


def set_threads(count: int) -> None:
    """Uses this many CPU threads for one operation; has no effect on a GPU's work."""
    torch.set_num_threads(count)


def openmp() -> ctypes.CDLL | None:
    """The library that runs torch's threads, where it is GNU's OpenMP; the one that is loaded already, and no other."""
    try:
        return ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return None


_HARD = 2
"""OpenMP's name for ending threads, and not only what they were told to do."""


def end_threads() -> None:
    """Ends the threads that compute for the calling one, which gets others when it computes again.

    OpenMP keeps some for every thread that ever computed, those of a start too. Once there are more than cores, all of
    them sleep whenever they wait, also within a step where they wait for each other several hundred times: a third of
    the time of a decode step of a small model. Has no effect where another library than GNU's runs torch's threads.
    """
    library = openmp()
    # Releases before 9 have no such function.
    if library is not None and hasattr(library, "omp_pause_resource"):
        library.omp_pause_resource(_HARD, library.omp_get_initial_device())


def bytes_free_on(device: torch.device) -> Bytes | None:
    """Bytes free in a device's own memory; None for a CPU, whose memory is the system's."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return Bytes(free)


class CudaMeter:
    """Measures what this process takes of a GPU's memory; see `kvist.app.workspace.Meter`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0

    def start(self) -> None:
        """What is taken from now on counts."""
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)

    def taken(self) -> Bytes:
        """The most bytes taken at once since `start`; what torch keeps of them for later is given back."""
        torch.cuda.synchronize(self._device)
        most = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.empty_cache()
        return Bytes(max(0, most - self._before))


def meter_of(device: torch.device) -> CudaMeter | None:
    """Measures a device's own memory; None for a CPU, whose memory is the system's."""
    return CudaMeter(device) if device.type == "cuda" else None


def runs_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels of `kvist.engine.backends.cpu` compute for this device in this dtype."""
    return device.type == "cpu" and dtype in (torch.bfloat16, torch.float32)


def prefers_products(tensor: torch.Tensor) -> bool:
    """Whether attention over many rows is faster as two matrix products than as torch's fused kernel.

    On a CPU in half precision it is, by about two: the products use the processor's bf16 instructions and the fused
    kernel hardly does (docs/decisions/0001-engine.md). Scores are then rounded to that precision, which is what
    transformers' own eager attention does.
    """
    return tensor.device.type == "cpu" and tensor.dtype in (torch.bfloat16, torch.float16)
