"""What each worker holds of a block, and from that what a record looks like and which part of it is whose. Pure.

A record of a group is one plane ``[layers, heads, tokens, content]``; every worker owns a range of layers and heads.

    canonical   heads: the model's KV heads; tokens: of the fabric's block; content: K and V of one token and head
    raw         the inside of a block is packed for a processor: heads: the workers; tokens: the engine's blocks per
                record; content: the bytes of one block of one layer as they lie

So the records of a canonical engine do not depend on how many workers it has; raw ones do, and say so.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvist.base.errors import ConfigError
from kvist.base.units import Tokens
from kvist.blocks.form import Form, Part, Plane, PlaneDtype

CANONICAL = "canonical"
"""The packing of an engine whose blocks can be seen inside."""


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
        layers: names of those it has, in the group's order; layers that are views of one memory count once. None: the
            other numbers say nothing.
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
        packing: `CANONICAL`, or how a raw block is packed; workers must agree.
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
    """Tokens of a fabric's block: the least that is a whole number of blocks of every group.

    Raises:
        ConfigError: there is no group, or one with blocks of no tokens.
    """
    if not groups:
        raise ConfigError("none of the engine's KV cache groups can be stored")
    for group in groups:
        if group.block_tokens < 1:
            raise ConfigError(f"KV cache group {group.index} of the engine has blocks of {group.block_tokens} tokens")
    return Tokens(math.lcm(*(group.block_tokens for group in groups)))


def record_shapes(groups: Sequence[EngineGroup], workers: Sequence[WorkerShape]) -> tuple[RecordShape, ...]:
    """What the records of each group look like, given what every worker holds.

    Args:
        groups: those that are stored. Where layers are spread over pipeline ranks, their names need only be those of
            one rank: what there is, the workers say.
        workers: all of them, in any order.

    Raises:
        ConfigError: workers do not fit together: another machine, packing, dtype or shape, layers missing or twice.
    """
    block_tokens = block_tokens_of(groups)
    stages = _stages(workers)
    for name, values in (
        ("machine", {worker.machine for worker in workers}),
        ("packing", {worker.packing for worker in workers}),
        ("replicas", {worker.replicas for worker in workers}),
        ("number of groups", {len(worker.groups) for worker in workers} | {len(groups)}),
    ):
        if len(values) > 1:
            raise ConfigError(f"workers differ in their {name}: {', '.join(sorted(map(repr, values)))}")
    replicas = workers[0].replicas
    if replicas < 1 or len(stages[0]) % replicas:
        raise ConfigError(f"{len(stages[0])} tensor ranks are no whole number of {replicas} replicas")
    return tuple(_record_shape(index, group, stages, block_tokens) for index, group in enumerate(groups))


def _stages(workers: Sequence[WorkerShape]) -> list[list[WorkerShape]]:
    """The workers of each pipeline rank, by tensor rank.

    Raises:
        ConfigError: they are no full grid of ranks.
    """
    ranks = sorted((worker.pipeline_rank, worker.tensor_rank) for worker in workers)
    depth, width = (1 + max((pair[axis] for pair in ranks), default=-1) for axis in (0, 1))
    if not ranks or ranks != [(stage, rank) for stage in range(depth) for rank in range(width)]:
        raise ConfigError(f"the (pipeline, tensor) ranks of the workers are no full grid: {ranks}")
    found = {(worker.pipeline_rank, worker.tensor_rank): worker for worker in workers}
    return [[found[stage, rank] for rank in range(width)] for stage in range(depth)]


def _record_shape(
    index: int, group: EngineGroup, stages: Sequence[Sequence[WorkerShape]], block_tokens: Tokens
) -> RecordShape:
    held = [_layers_of_stage(index, stage) for stage in stages]
    _check_layers(index, group, held)
    first = _the_one_shape(index, stages)
    packing, replicas, width = stages[0][0].packing, stages[0][0].replicas, len(stages[0])
    engine_blocks = block_tokens // group.block_tokens
    layers, heads = sum(map(len, held)), first.heads * (width // replicas)
    name = "kv" if packing == CANONICAL else "raw"
    plane = Plane(name, first.dtype, (layers, heads, engine_blocks * first.tokens, first.content))
    shares = {
        (stage, rank): Share(
            layers_first=sum(map(len, held[:stage])),
            layers=len(held[stage]),
            heads_first=first.heads * (rank // replicas),
            heads=first.heads,
            writes=rank % replicas == 0,
        )
        for stage in range(len(stages))
        for rank in range(width)
    }
    part = Part(layers_first=0, layers=layers, heads_first=0, heads=heads)
    return RecordShape(form=Form(planes=(plane,), part=part), engine_blocks=engine_blocks, shares=shares)


def _layers_of_stage(index: int, stage: Sequence[WorkerShape]) -> tuple[str, ...]:
    layers = stage[0].groups[index].layers
    for worker in stage:
        other = worker.groups[index].layers
        if other != layers:
            raise ConfigError(
                f"group {index} has {len(layers)} layers at tensor rank 0 of pipeline rank {worker.pipeline_rank} and "
                f"others, {len(other)}, at tensor rank {worker.tensor_rank}"
            )
    return layers


def _check_layers(index: int, group: EngineGroup, held: Sequence[tuple[str, ...]]) -> None:
    names = [name for layers in held for name in layers]
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ConfigError(f"group {index}: {twice[0]} is held twice, and so are {len(twice) - 1} other layers")
    if not names:
        raise ConfigError(f"group {index}: no worker holds a layer of it, not even {group.layers[:1]}")
    if len(held) == 1 and (unknown := [name for name in names if name not in group.layers]):
        raise ConfigError(f"group {index}: a worker holds {unknown[0]}, which is no layer of the group")


def _the_one_shape(index: int, stages: Sequence[Sequence[WorkerShape]]) -> GroupShape:
    """What each of the workers holds of one layer; a record's plane has room for one shape."""
    shapes = [worker.groups[index] for stage in stages for worker in stage if worker.groups[index].layers]
    first = shapes[0]
    for shape in shapes:
        if replace(shape, layers=first.layers) != first:
            raise ConfigError(
                f"group {index}: workers hold blocks of different shape or dtype: "
                f"{_numbers(first)} of {first.layers[0]}, {_numbers(shape)} of {shape.layers[0]}"
            )
    if min(first.heads, first.tokens, first.content) < 1:
        raise ConfigError(f"group {index}: a block of {first.layers[0]} is empty: {_numbers(first)}")
    return first


def _numbers(shape: GroupShape) -> str:
    return f"[{shape.heads}, {shape.tokens}, {shape.content}] {shape.dtype}"
