"""The random number behind each drawn token, as a pure function of the request's seed and the position.

Because it depends on nothing else, neither batching nor preemption nor chunking changes what is drawn.
"""

from blake3 import blake3


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) for the output token with this index.

    Args:
        seed: any integer of at most 64 bits, signed or not.
        index: 0 for the first output token.

    >>> 0.0 <= uniform(7, 0) < 1.0 and uniform(7, 0) == uniform(7, 0) != uniform(7, 1)
    True
    """
    digest = blake3(b"%d:%d" % (seed, index)).digest(8)
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)
