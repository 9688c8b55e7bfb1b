"""The random number behind each drawn token, as a pure function of the request's seed and the position.

Because it depends on nothing else, neither batching nor preemption nor chunking changes what is drawn.
"""

import struct

from blake3 import blake3

_STEP = 1 / (1 << 53)


def uniforms(seed: int, start: int, count: int) -> list[float]:
    """Numbers in [0, 1) for output tokens one after the other: as many cost hardly more than one.

    They are the top 53 bits of each 8 bytes of what BLAKE3 makes of the seed, which it can make from anywhere on.

    Args:
        seed: any integer of at most 64 bits, signed or not.
        start: index of the first; 0 for the first output token.
        count: how many.
    """
    stream = blake3(b"%d" % seed).digest(8 * count, seek=8 * start)
    return [(number >> 11) * _STEP for number in struct.unpack(f"<{count}Q", stream)]


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) for the output token with this index.

    Args:
        seed: any integer of at most 64 bits, signed or not.
        index: 0 for the first output token.

    >>> 0.0 <= uniform(7, 0) < 1.0 and uniform(7, 0) == uniform(7, 0) != uniform(7, 1)
    True
    """
    return uniforms(seed, index, 1)[0]
