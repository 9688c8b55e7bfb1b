"""What the scheduler's side is told once, at its start, and what it is given to work with."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kvist.base.clock import Clock
from kvist.base.units import Bytes, Tokens
from kvist.blocks.window import Retention
from kvist.connectors.vllm.identities import Tenants
from kvist.connectors.vllm.requests import AdapterName
from kvist.connectors.vllm.shapes import EngineGroup, RecordShape
from kvist.tiers.regions import RegionHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Shapes and bounds.

    Attributes:
        groups: those that are stored; a group's place here is its number in the fabric.
        shapes: of their records.
        hash_tokens: tokens per hash of vLLM's.
        block_tokens: tokens per block of the fabric: a whole number of hashes, and of every group's blocks.
        retention: which blocks of windows are worth storing.
        offload_prompt_only: whether what was generated is left out.
        workers: how many acknowledge an order.
        pool_blocks: of vLLM, all groups together.
        copy_bytes_max: about so much is copied in, and so much out, beside a step that computes.
        hold_s: how long the blocks of a finished request wait for room.
        idle_wait_s: how long a step that computes nothing waits for what it could do.
        steps_overlap: whether vLLM plans a step before the one before it has ended.
    """

    groups: tuple[EngineGroup, ...]
    shapes: tuple[RecordShape, ...]
    hash_tokens: Tokens
    block_tokens: Tokens
    retention: Retention = field(default_factory=Retention)
    offload_prompt_only: bool = False
    workers: int = 1
    pool_blocks: int
    copy_bytes_max: Bytes = Bytes(64 * 2**20)
    hold_s: float = 5.0
    idle_wait_s: float = 0.002
    steps_overlap: bool = False

    def __post_init__(self) -> None:
        assert self.groups, "nothing is to be stored"
        assert len(self.groups) == len(self.shapes), f"{len(self.groups)} groups, {len(self.shapes)} shapes"
        for size in (self.hash_tokens, *(group.block_tokens for group in self.groups)):
            assert self.block_tokens % size == 0, f"a block of {self.block_tokens} tokens is not made of {size}"

    @property
    def stride(self) -> int:
        """Hashes of vLLM's per block of the fabric."""
        return self.block_tokens // self.hash_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What comes from outside.

    Attributes:
        clock: the fabric's.
        tenants: whose a request's blocks are.
        scheme: how vLLM hashes, and what its chains start from.
        adapter_digest: of an adapter's files; None: it cannot be told from others. Cheap when asked again.
        is_clean: whether all that vLLM itself has cached was computed with what it computes with now.
        handles: of all memory that orders may name.
    """

    clock: Clock
    tenants: Tenants
    scheme: bytes
    adapter_digest: Callable[[AdapterName], bytes | None]
    is_clean: Callable[[], bool]
    handles: tuple[RegionHandle, ...] = ()
