"""What tests of kernels share."""

from collections.abc import Callable, Iterator

import pytest
import torch

import kept_kernels

kept_kernels.keep()


@pytest.fixture
def torch_threads() -> Iterator[Callable[[int], None]]:
    """Sets how many threads torch uses, and puts the number back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
