"""Whether vLLM names the same text the same way tomorrow, and on the next host. Pure.

Kvist finds blocks by vLLM's own hashes. They start from a seed: a fixed one for SHA-256, the environment's where
PYTHONHASHSEED is set, else, for xxHash, one that each process draws for itself.
"""

from collections.abc import Collection, Iterator

from kvist.app.doctor_findings import Finding, note, ok, problem, shown

CHECK = "hashes"
VARIABLE = "PYTHONHASHSEED"
DEFAULT = "sha256"
_SECURE = ("sha256", "sha256_cbor")
_FAST = ("xxhash", "xxhash_cbor")
_FLAG = "--prefix-caching-hash-algo"
_OUTLIVING = frozenset({"disk", "pool"})


def hash_findings(algorithm: str, seed: str | None, kinds: Collection[str]) -> Iterator[Finding]:
    """Looks at what vLLM hashes blocks with.

    Args:
        algorithm: as `--prefix-caching-hash-algo` takes it.
        seed: what PYTHONHASHSEED is for vLLM; None: not set.
        kinds: of the tiers; none: not known.
    """
    if algorithm not in (*_SECURE, *_FAST):
        yield problem(
            CHECK,
            f"{shown(algorithm)} is no hash algorithm that vLLM has",
            f"give {_FLAG} one of {', '.join((*_SECURE, *_FAST))}",
        )
        return
    if algorithm in _FAST:
        yield _fast(algorithm, seed, kinds)
    elif algorithm == "sha256" and "pool" in kinds:
        yield note(
            CHECK,
            "sha256 hashes Python's pickle of a block, which may differ between processes for equal adapters and "
            "images, and between releases of Python: such blocks are then not found by others",
            f"where several vLLM share a pool, start each with {_FLAG} sha256_cbor",
        )
    else:
        yield ok(CHECK, f"{algorithm} gives equal prompts equal hashes in every process")
    if seed is not None and "pool" in kinds:
        yield note(
            CHECK,
            f"{VARIABLE} is set, and vLLM's hashes start from it: only processes with the same value meet in the pool",
            f"give every vLLM that shares the pool the same {VARIABLE}, or none of them any",
        )


def _fast(algorithm: str, seed: str | None, kinds: Collection[str]) -> Finding:
    collides = f"{algorithm} is not collision-resistant: who chooses prompts may make two that have one hash"
    if seed is not None:
        return note(CHECK, collides, f"serve strangers with {_FLAG} sha256_cbor")
    random = f"{algorithm} starts from a random seed in each process while {VARIABLE} is not set"
    if kinds and not _OUTLIVING & set(kinds):
        return note(CHECK, f"{random}; blocks in host memory are found, for they end with the process", "")
    return problem(
        CHECK,
        f"{random}: after a restart, and in any other process, nothing that was stored is ever found",
        f"start vLLM with {_FLAG} sha256_cbor, or with one {VARIABLE} everywhere",
    )
