"""The bounds of a naive vLLM, and one of its requests."""

from dataclasses import dataclass, field
from math import lcm
from typing import Literal

from kvist.connectors.vllm.requests import AdapterName


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Groups as (tokens per block, window), and the bounds of an engine."""

    groups: tuple[tuple[int, int | None], ...] = ((16, None),)
    hash_tokens: int = 16
    workers: int = 1
    pool_blocks: int = 64
    budget: int = 64
    running_max: int = 4

    @property
    def block_tokens(self) -> int:
        """Of the fabric, and what local hits are a multiple of."""
        return lcm(*(size for size, _ in self.groups))


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One request."""

    id: str
    tokens: list[int] = field(repr=False)
    prompt: int
    until: int
    salt: str | None = None
    adapter: AdapterName | None = None
    reads_cache: bool = True
    status: Literal["waiting", "parked", "running", "finished"] = "waiting"
    computed: int = 0
    era: int = 0
    tables: list[list[int]] = field(default_factory=list, repr=False)
    hashes: list[bytes] = field(default_factory=list, repr=False)
    parked_s: float = 0.0
    external: tuple[int, int] = (0, 0)
    load_failed: bool = False
