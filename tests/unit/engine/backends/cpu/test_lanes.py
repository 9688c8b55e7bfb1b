"""Processors with narrower vectors, and without dot products of bfloat16, compute the same."""

import os
import subprocess
import sys

import pytest

ALL_INSTRUCTIONS = """
import torch
from kvist.engine.backends.cpu.dots import dots2
from kvist.engine.backends.cpu.kernel import DTYPES, Kernel
from kvist.engine.backends.cpu.lanes import lanes
from kvist.engine.backends.cpu.numbers import integer
from kvist.engine.backends.cpu.vectors import blend, blended, score, scored

def everything(given):
    one, rows, distance, size = integer(given, 0), integer(given, 1), integer(given, 2), integer(given, 3)
    width, weights, into = integer(given, 4), integer(given, 5), integer(given, 6)
    dots2(given, (one, rows, distance, 1, size, into))
    score(given, (one, rows, distance, 6, scored(given, width), into + 32, 64))
    blend(given, (rows, distance, 7, weights, 28, 3, into + 64, width * 4, 64, blended(width)))

torch.set_num_threads(1)
kernel, width = Kernel(everything), 96
for dtype in DTYPES:
    one, rows, weights = torch.randn(width).to(dtype), torch.randn(7, width).to(dtype), torch.randn(4, 7)
    found = torch.zeros(16 + 4 * width)
    places = [tensor.data_ptr() for tensor in (one, rows, weights, found)]
    kernel(dtype, *places[:2], rows.stride(0) * rows.itemsize, width * rows.itemsize, width, *places[2:])
    dots = rows.float() @ one.float()
    torch.testing.assert_close(found[:2], dots[:2], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[8:15], dots, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[16:].view(4, width), weights @ rows.float(), rtol=1e-4, atol=1e-4)
print(lanes())
"""


@pytest.mark.parametrize(
    ("processor", "features", "lanes"), [("generic", "", 4), ("haswell", "+avx,+avx2,+fma", 8)], ids=["sse", "avx2"]
)
def test_an_older_processor_computes_the_same(processor: str, features: str, lanes: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALL_INSTRUCTIONS],
        env={**os.environ, "NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{lanes}\n"), done.stderr
