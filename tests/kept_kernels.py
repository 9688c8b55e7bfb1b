"""Compiled kernels, kept where a server keeps them: each process of tests would need half a minute for its own."""

import os

from kvist.app.cache_dir import cache_root, make_private
from kvist.engine.backends.cpu.kernel import keep_compiled


def keep() -> None:
    """Has kernels that are compiled from now on found again by later processes."""
    directory = cache_root(os.environ) / "kernels"
    make_private(directory)
    keep_compiled(directory)
