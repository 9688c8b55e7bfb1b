"""Memory for KV, touched while the packages that compute are still imported.

In a virtual machine touching 2 GiB for the first time takes as long as half of the imports, and needs no interpreter.
What is refused for want of memory without it is refused with it: it begins only where the size of the pool is known
and small beside what is free, and is given back where weights might then not fit.
"""

from dataclasses import dataclass
from pathlib import Path

from kvist.app.budget import kv_bytes_asked
from kvist.app.config import ServeConfig
from kvist.app.memory import bytes_free
from kvist.base.units import Bytes
from kvist.engine.backends.host_memory import TouchedMemory

_FREE_PARTS = 2
"""One of so many parts of what is free may be touched before anything else is known."""

_WEIGHTS_COPIES = 3
"""As they are mapped from the files, as they are kept, and once more, if they are put together or converted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedMemory:
    """Memory for the KV pool, and how many bytes were free before it was reserved."""

    memory: TouchedMemory
    free: Bytes


def reserved_ahead(config: ServeConfig) -> ReservedMemory | None:
    """Begins to touch the KV pool's memory; None where its size is not known yet, or is too much to take unseen."""
    wanted, free = kv_bytes_asked(config), bytes_free()
    if wanted is None or wanted > free // _FREE_PARTS:
        return None
    try:
        return ReservedMemory(memory=TouchedMemory(wanted), free=free)
    except (OSError, OverflowError):
        return None  # the pool's own allocation says so, in words


def beside_weights(reserved: ReservedMemory | None, directory: Path) -> TouchedMemory | None:
    """What was reserved; given back, and None, where it might leave too little for the weights."""
    if reserved is None:
        return None
    weights = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    if reserved.memory.nbytes + _WEIGHTS_COPIES * weights > reserved.free:
        reserved.memory.give_back()
        return None
    return reserved.memory
