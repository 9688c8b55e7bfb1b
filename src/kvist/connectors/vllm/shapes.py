"""What each worker holds of a block, and from that what a record looks like and which part of it is whose. Pure.

A record of a group is one plane ``[layers, heads, tokens, content]``; every worker owns a range of its layers and heads.

    canonical   heads: the model's KV heads; tokens: of the fabric's block; content: K and V of one token and head
    raw         the inside of a block is packed for a processor: heads: the workers; tokens: the engine's blocks per
                record; content: the bytes of one block of one layer as they lie

So the records of a canonical engine do not depend on how many workers it has; raw ones do, and say so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.base.errors import ConfigError
from kvist.base.units import Tokens
from kvist.blocks.form import Form, Part, Plane, PlaneDtype


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGroup:
    """One of vLLM's KV cache groups that is stored.

    Attributes:
        index: among all of vLLM's groups.
        layers: names, in vLLM's order.
        block_tokens: tokens per block of the engine.
        window: how many tokens before its end a hit needs of this group; None: all of them.
    """

    index: int
    layers: tuple[str, ...]
    block_tokens: Tokens
    window: Tokens | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """What one worker holds of one block of one group.

    Attributes:
        layers: names of those it has, in the group's order; layers that are views of one memory count once.
        heads, tokens, content: of one layer of one block of the engine; raw: 1, 1 and the bytes of it.
        dtype: of the numbers; raw: "uint8".
    """

    layers: tuple[str, ...]
    heads: int
    tokens: int
    content: int
    dtype: PlaneDtype


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShape:
    """What a worker says of itself before the first step.

    Attributes:
        pipeline_rank, tensor_rank: which worker it is.
        machine: names the running system; workers and scheduler must share its memory.
        packing: "canonical", or how a raw block is packed; workers must agree.
        replicas: so many consecutive tensor ranks hold the same heads.
        groups: in the order of the stored groups.
    """

    pipeline_rank: int
    tensor_rank: int
    machine: str
    packing: str
    replicas: int
    groups: tuple[GroupShape, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which range of a record's plane one worker holds, and whether it is the one that writes it."""

    layers_first: int
    layers: int
    heads_first: int
    heads: int
    writes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordShape:
    """A group's records.

    Attributes:
        form: of one record: one plane, one part.
        engine_blocks: how many of the engine's blocks one record holds.
        shares: by (pipeline rank, tensor rank).
    """

    form: Form
    engine_blocks: int
    shares: dict[tuple[int, int], Share]


def block_tokens_of(groups: Sequence[EngineGroup]) -> Tokens:
    """Tokens of a fabric's block: the least that is a whole number of blocks of every group."""
    raise NotImplementedError


def record_shapes(groups: Sequence[EngineGroup], workers: Sequence[WorkerShape]) -> tuple[RecordShape, ...]:
    """What the records of each group look like, given what every worker holds.

    Raises:
        ConfigError: workers do not fit together: another machine, packing, dtype or shape, layers missing or twice.
    """
    raise ConfigError(f"{len(groups)} groups, {len(workers)} workers", Plane, Part)
