"""Copies by strides: what one engine stored, another of any layout and workers has, and nothing else changes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fakes.kv_tensors import BLOCKS_ARE_RUNS, LAYOUTS, Laid, kv_of, memory_of
from kvist.base.errors import WireError
from kvist.base.units import Tokens
from kvist.connectors.vllm.host_copies import HostCopies
from kvist.connectors.vllm.shapes import CANONICAL, EngineGroup, RecordShape, WorkerShape, record_shapes
from kvist.connectors.vllm.views import group_shape, group_views

GROUP_LAYERS = tuple(f"layer.{index}" for index in range(4))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An engine: how its tensors lie, and which worker has which layers and heads of the model's.

    Attributes:
        stages: layers of each pipeline rank.
        shards, replicas: tensor ranks are so many times so many.
    """

    laid: Laid
    stages: tuple[int, ...] = (4,)
    shards: int = 1
    replicas: int = 1
    raw: bool = False


class Engine:
    """All workers of a plan in one process, each with memory of its own."""

    def __init__(self, plan: Plan, block_tokens: int, seed: int) -> None:
        self.plan = plan
        self.ranks = [(stage, rank) for stage in range(len(plan.stages)) for rank in range(plan.shards * plan.replicas)]
        self.memory, self.tensors = {}, {}
        for stage, rank in self.ranks:
            first = sum(plan.stages[:stage])
            laid = replace(plan.laid, layers=plan.stages[stage], heads=plan.laid.heads // plan.shards)
            # Replicas hold the same, as workers that computed the same do.
            memory = memory_of(laid.nbytes + laid.begin, seed + 100 * stage + rank // plan.replicas)
            held = laid.tensors(memory)
            self.memory[stage, rank] = memory
            self.tensors[stage, rank] = {GROUP_LAYERS[first + index]: each for index, each in enumerate(held.values())}
        self.record = self._record(block_tokens)
        self.copies = {
            rank: HostCopies(self._views(rank), self.record, self.record.shares[rank]) for rank in self.ranks
        }

    def _views(self, rank: tuple[int, int]) -> tuple:
        tensors, laid = self.tensors[rank], self.plan.laid
        inside = replace(laid.inside(raw=self.plan.raw), block_bytes=laid.block_bytes // self.plan.shards)
        return group_views(tensors, laid.group(tensors), laid.blocks, inside)

    def _record(self, block_tokens: int) -> RecordShape:
        workers = [
            WorkerShape(
                pipeline_rank=stage,
                tensor_rank=rank,
                machine="here",
                packing="amx" if self.plan.raw else CANONICAL,
                replicas=self.plan.replicas,
                groups=(group_shape(self._views((stage, rank))), group_shape(())),
            )
            for stage, rank in self.ranks
        ]
        group = self.plan.laid.group(GROUP_LAYERS)
        # A second group, of nothing, whose blocks are as long as the record's, makes this one's several of a record.
        coarse = EngineGroup(index=1, layers=("x",), block_tokens=Tokens(block_tokens), window=None)
        filled = [
            replace(each, groups=(each.groups[0], replace(each.groups[0], layers=("x",)))) for each in workers[:1]
        ]
        for each in workers[1:]:
            layers = ("x",) if each.pipeline_rank == 0 else ()
            filled.append(replace(each, groups=(each.groups[0], replace(each.groups[0], layers=layers))))
        return record_shapes([group, coarse], filled)[0]

    def kv(self) -> np.ndarray:
        """[layers, blocks, heads, tokens, content] of the whole model, as bytes; replicas agree."""
        stages = []
        for stage in range(len(self.plan.stages)):
            ranks = [rank for rank in self.ranks if rank[0] == stage]
            each = [kv_of(self.tensors[rank], self.plan.laid.blocks) for rank in ranks]
            for rank in range(len(ranks)):
                first = rank - rank % self.plan.replicas
                assert (each[rank] == each[first]).all(), "replicas differ"
            stages.append(np.concatenate(each[:: self.plan.replicas], axis=2))
        return np.concatenate(stages)

    def store(self, blocks: Iterable[int]) -> memoryview:
        payload = memoryview(bytearray(b"\xa5" * self.record.form.payload_bytes))
        for rank in self.ranks:
            assert self.copies[rank].copy_out(tuple(blocks), payload)()
        return payload

    def load(self, blocks: Iterable[int], payload: memoryview) -> None:
        for rank in self.ranks:
            assert self.copies[rank].copy_in(tuple(blocks), payload)()


@st.composite
def plans(draw: st.DrawFn, *, heads: int, dtype: torch.dtype) -> Plan:
    parts = draw(st.sampled_from([1, 2, 4]))
    laid = Laid(
        layout=draw(st.sampled_from(LAYOUTS)),
        blocks=draw(st.integers(6, 9)),
        heads=heads,
        tokens=8,
        dtype=dtype,
        parts=parts,
        begin=draw(st.sampled_from([0, 64])),
        room=0 if parts > 1 else draw(st.sampled_from([0, 512])),
    )
    stages = draw(st.sampled_from([(4,), (1, 3), (2, 2)]))
    shards = draw(st.sampled_from([count for count in (1, 2, 4) if heads % count == 0]))
    return Plan(laid=laid, stages=stages, shards=shards, replicas=draw(st.integers(1, max(1, 4 // shards))))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Plan, Plan]:
    heads = draw(st.sampled_from([1, 2, 4]))  # one head: what MLA has
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float8_e4m3fn, torch.float32]))
    return draw(plans(heads=heads, dtype=dtype)), draw(plans(heads=heads, dtype=dtype))


@given(pair=pairs(), together=st.sampled_from([1, 2, 3]), data=st.data())
def test_what_one_engine_stored_another_has(pair: tuple[Plan, Plan], together: int, data: st.DataObject) -> None:
    one, other = (Engine(plan, 8 * together, seed) for seed, plan in zip((1, 2), pair, strict=True))
    assert one.record.form == other.record.form
    chosen = [
        data.draw(st.lists(st.integers(0, plan.laid.blocks - 1), min_size=together, max_size=together, unique=True))
        for plan in pair
    ]
    payload = one.store(chosen[0])
    # The payload is the canonical order itself: layers, heads, tokens, content.
    seen = one.kv()[:, chosen[0]].transpose(0, 2, 1, 3, 4)
    assert bytes(payload) == seen.tobytes()

    before = {rank: memory.clone() for rank, memory in other.memory.items()}
    other.load(chosen[1], payload)
    assert (other.kv()[:, chosen[1]] == one.kv()[:, chosen[0]]).all()
    for rank, memory in other.memory.items():
        changed = (memory != before[rank]).numpy()
        assert not changed[~bytes_of(other, rank, chosen[1])].any(), "bytes of no block concerned have changed"


def bytes_of(engine: Engine, rank: tuple[int, int], blocks: list[int]) -> np.ndarray:
    """Which bytes of a worker's memory are those of some blocks."""
    marks = torch.zeros_like(engine.memory[rank])
    stage = rank[0]
    laid = replace(
        engine.plan.laid, layers=engine.plan.stages[stage], heads=engine.plan.laid.heads // engine.plan.shards
    )
    for tensor in laid.tensors(marks).values():
        for block in blocks:
            tensor.view(torch.int8)[block * laid.parts : (block + 1) * laid.parts] = 1
    return marks.numpy() == 1


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("layout", BLOCKS_ARE_RUNS)
def test_packed_blocks_come_back_as_they_lay(layout: str, parts: int) -> None:
    laid = Laid(layout=layout, layers=4, heads=2, parts=parts if layout.startswith("L") else 1)
    plan = Plan(laid=laid, stages=(1, 3), shards=2, raw=True)
    one, other = Engine(plan, 16, 1), Engine(plan, 16, 2)
    payload = one.store([5, 2])
    assert len(payload) == 4 * 2 * laid.block_bytes
    other.load([0, 7], payload)
    assert (other.kv()[:, [0, 7]] == one.kv()[:, [5, 2]]).all()
    assert (other.kv()[:, 1:7] == Engine(plan, 16, 2).kv()[:, 1:7]).all()


def test_only_one_of_replicas_writes() -> None:
    engine = Engine(Plan(laid=Laid(layers=4), replicas=2), 8, 1)
    payload = memoryview(bytearray(engine.record.form.payload_bytes))
    engine.copies[0, 1].copy_out([3], payload)
    assert not any(payload)
    assert engine.copies[0, 1].out_bytes == 0
    assert engine.copies[0, 1].in_bytes == engine.copies[0, 0].out_bytes == len(payload)


def test_a_payload_that_may_only_be_read_can_be_loaded() -> None:
    engine = Engine(Plan(laid=Laid(layers=4)), 8, 1)
    payload = engine.store([3])
    engine.load([4], payload.toreadonly())
    assert (engine.kv()[:, 4] == engine.kv()[:, 3]).all()
    with pytest.raises(ValueError, match="read-only"):
        engine.copies[0, 0].copy_out([4], payload.toreadonly())


@pytest.mark.parametrize("blocks", [(), (1,), (1, 2, 3), (-1, 2), (1, 8), (2**40, 1)])
def test_blocks_that_are_no_record_are_refused(blocks: tuple[int, ...]) -> None:
    engine = Engine(Plan(laid=Laid(layers=4)), 16, 1)
    payload = memoryview(bytearray(engine.record.form.payload_bytes))
    before = engine.kv()
    for verb in (engine.copies[0, 0].copy_in, engine.copies[0, 0].copy_out):
        with pytest.raises(WireError, match=r"blocks"):
            verb(blocks, payload)
    assert (engine.kv() == before).all()
    assert not any(payload)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_payload_of_another_size_is_refused(off: int) -> None:
    engine = Engine(Plan(laid=Laid(layers=4)), 8, 1)
    payload = memoryview(bytearray(engine.record.form.payload_bytes + off))
    with pytest.raises(WireError, match="are no record"):
        engine.copies[0, 0].copy_in([1], payload)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (1, 0, 3, 2), (3, 2, 1, 0)])
def test_layers_of_several_allocations_and_distances_keep_their_places(order: tuple[int, ...]) -> None:
    laid = Laid(layers=2)
    near, far = (laid.tensors(memory_of(laid.nbytes, seed), f"{seed}") for seed in (1, 2))
    held = [*near.values(), *far.values()]
    tensors = {name: held[index] for name, index in zip(GROUP_LAYERS, order, strict=True)}
    record = Engine(Plan(laid=replace(laid, layers=4)), 8, 9).record
    views = group_views(tensors, laid.group(tensors), laid.blocks, laid.inside())
    copies = HostCopies(views, record, record.shares[0, 0])
    payload = memoryview(bytearray(record.form.payload_bytes))
    copies.copy_out([3], payload)
    assert bytes(payload) == kv_of(tensors, 8)[:, 3].tobytes()
    copies.copy_in([5], payload)
    assert (kv_of(tensors, 8)[:, 5] == kv_of(tensors, 8)[:, 3]).all()


def test_a_worker_without_layers_of_the_group_has_nothing_to_do() -> None:
    record = Engine(Plan(laid=Laid(layers=4)), 8, 1).record
    none = HostCopies((), record, replace(record.shares[0, 0], layers=0))
    payload = memoryview(bytearray(record.form.payload_bytes))
    assert none.copy_in([0], payload)()
    assert none.copy_out([0], payload)()
    assert (none.in_bytes, bytes(payload)) == (0, bytes(len(payload)))
