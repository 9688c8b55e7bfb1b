"""Names of devices and dtypes, and which errors mean that memory is short."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pytest
import torch

from kvist.base.errors import ConfigError
from kvist.engine.backends.cpu.kernel import DTYPES
from kvist.engine.backends.device import (
    bytes_free_on,
    end_threads,
    is_out_of_memory,
    open_device,
    runs_kernels,
    set_threads,
    torch_dtype,
)
from kvist.geometry.groups import DTYPE_BYTES, Dtype


def test_the_cpu_is_always_there_and_has_no_memory_of_its_own() -> None:
    assert open_device("cpu") == torch.device("cpu")
    assert bytes_free_on(torch.device("cpu")) is None


@pytest.mark.parametrize("name", ["", "CPU", "cpu:1", "tpu", "mps", "cuda:0", "\x00", "cpu "])
def test_any_other_name_is_refused_with_what_can_be_used(name: str) -> None:
    with pytest.raises(ConfigError, match=r"not available here; use cpu or cuda") as caught:
        open_device(name)
    assert repr(name) in str(caught.value)


def test_cuda_is_opened_where_it_is_and_refused_where_it_is_not() -> None:
    if torch.cuda.is_available():
        device = open_device("cuda")
        assert (bytes_free_on(device) or 0) > 0
    else:
        with pytest.raises(ConfigError, match=r"'cuda' is not available here; use cpu$"):
            open_device("cuda")


@pytest.mark.parametrize("name", get_args(Dtype))
def test_every_dtype_of_the_geometry_has_torch_s_name_and_size(name: Dtype) -> None:
    dtype = torch_dtype(name)
    assert str(dtype) == f"torch.{name}"
    assert dtype.itemsize == DTYPE_BYTES[name]


def test_kernels_compute_on_a_cpu_in_the_dtypes_that_they_are_compiled_for() -> None:
    every = [torch_dtype(name) for name in get_args(Dtype)]
    assert {dtype for dtype in every if runs_kernels(torch.device("cpu"), dtype)} == set(DTYPES)
    assert not any(runs_kernels(torch.device("cuda"), dtype) for dtype in every)


def test_a_real_lack_of_memory_is_told_from_other_failures() -> None:
    with pytest.raises(RuntimeError) as lack:
        torch.empty(2**50)
    with pytest.raises(RuntimeError) as other:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert is_out_of_memory(lack.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(other.value)
    assert not is_out_of_memory(ValueError("x"))


def test_threads_are_what_they_were_set_to() -> None:
    before = torch.get_num_threads()
    try:
        for count in (1, 3):
            set_threads(count)
            assert torch.get_num_threads() == count
    finally:
        set_threads(before)


def test_threads_that_computed_for_one_that_computes_no_more_are_ended() -> None:
    def counts() -> tuple[int, int, int, float]:
        alone = _threads()
        first = float(torch.ones(2**22).sum())
        beside = _threads()
        end_threads()
        ended = _threads()
        return beside - alone, ended - alone, torch.get_num_threads(), float(torch.ones(2**22).sum()) / first

    before = torch.get_num_threads()
    try:
        set_threads(3)
        with ThreadPoolExecutor(1) as other:
            assert other.submit(counts).result() == (2, 0, 3, 1.0), "two more computed, none was left, and others came"
    finally:
        set_threads(before)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
