"""Records of engines of any number of workers: every byte has one writer, and misfits are refused by name."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.base.errors import ConfigError
from kvist.base.units import Tokens
from kvist.blocks.form import Part, Plane
from kvist.connectors.vllm.shapes import (
    CANONICAL,
    EngineGroup,
    GroupShape,
    Share,
    WorkerShape,
    block_tokens_of,
    record_shapes,
)

LAYERS = ("a", "b", "c")


def group(tokens: int = 16, layers: tuple[str, ...] = LAYERS) -> EngineGroup:
    return EngineGroup(index=0, layers=layers, block_tokens=Tokens(tokens), window=None)


def held(layers: tuple[str, ...] = LAYERS, *, heads: int = 2, content: int = 128) -> GroupShape:
    return GroupShape(layers=layers, heads=heads, tokens=16, content=content, dtype="bfloat16")


def worker(
    *groups: GroupShape, pipeline: int = 0, tensor: int = 0, replicas: int = 1, packing: str = CANONICAL
) -> WorkerShape:
    return WorkerShape(
        pipeline_rank=pipeline,
        tensor_rank=tensor,
        machine="here",
        packing=packing,
        replicas=replicas,
        groups=groups or (held(),),
    )


@pytest.mark.parametrize(("sizes", "block"), [((16,), 16), ((16, 32), 32), ((48, 32), 96), ((128, 32, 64), 128)])
def test_a_block_is_a_whole_number_of_blocks_of_every_group(sizes: tuple[int, ...], block: int) -> None:
    assert block_tokens_of([group(size) for size in sizes]) == block


def test_there_must_be_groups_and_their_blocks_must_hold_tokens() -> None:
    with pytest.raises(ConfigError, match="none of the engine's KV cache groups"):
        block_tokens_of([])
    with pytest.raises(ConfigError, match="blocks of 0 tokens"):
        block_tokens_of([group(0)])


def test_the_record_of_one_worker() -> None:
    (record,) = record_shapes([group()], [worker()])
    assert record.form.planes == (Plane("kv", "bfloat16", (3, 2, 16, 128)),)
    assert record.form.part == Part(layers_first=0, layers=3, heads_first=0, heads=2)
    assert record.engine_blocks == 1
    assert record.shares == {(0, 0): Share(layers_first=0, layers=3, heads_first=0, heads=2, writes=True)}


def test_groups_of_shorter_blocks_have_several_in_a_record() -> None:
    coarse, fine = group(32), replace(group(16), index=1)
    shape = replace(held(), tokens=32)
    records = record_shapes([coarse, fine], [worker(shape, held())])
    assert [record.engine_blocks for record in records] == [1, 2]
    assert [record.form.planes[0].shape for record in records] == [(3, 2, 32, 128)] * 2


def test_canonical_records_do_not_depend_on_the_workers() -> None:
    (alone,) = record_shapes([group()], [worker(held(heads=4))])
    (spread,) = record_shapes(
        [group(layers=("a",))],
        [
            worker(held(layers, heads=2), pipeline=stage, tensor=rank, replicas=2)
            for stage, layers in enumerate((("a",), ("b", "c")))
            for rank in range(4)
        ],
    )
    assert spread.form == alone.form
    assert spread.shares[1, 3] == Share(layers_first=1, layers=2, heads_first=2, heads=2, writes=False)


def test_raw_records_keep_the_blocks_of_each_worker_apart() -> None:
    raw = GroupShape(layers=LAYERS, heads=1, tokens=1, content=24_576, dtype="uint8")
    workers = [worker(raw, raw, tensor=rank, packing="amx") for rank in range(2)]
    fine, coarse = record_shapes([group(32), group(64)], workers)
    assert fine.form.planes == (Plane("raw", "uint8", (3, 2, 2, 24_576)),)
    assert coarse.form.planes == (Plane("raw", "uint8", (3, 2, 1, 24_576)),)
    assert fine.shares[0, 1] == Share(layers_first=0, layers=3, heads_first=1, heads=1, writes=True)


def test_a_stage_may_have_no_layer_of_a_group() -> None:
    none = GroupShape(layers=(), heads=0, tokens=0, content=0, dtype="uint8")
    (record,) = record_shapes([group()], [worker(none), worker(held(), pipeline=1)])
    assert record.form.planes[0].shape == (3, 2, 16, 128)
    assert record.shares[0, 0].layers == 0


@given(
    stages=st.lists(st.integers(0, 3), min_size=1, max_size=3).filter(any),
    shards=st.integers(1, 4),
    replicas=st.integers(1, 3),
    heads=st.integers(1, 3),
)
def test_each_layer_and_head_has_exactly_one_writer(stages: list[int], shards: int, replicas: int, heads: int) -> None:
    names = [[f"{stage}.{index}" for index in range(layers)] for stage, layers in enumerate(stages)]
    workers = [
        worker(held(tuple(layers), heads=heads), pipeline=stage, tensor=rank, replicas=replicas)
        for stage, layers in enumerate(names)
        for rank in range(shards * replicas)
    ]
    (record,) = record_shapes([group(layers=tuple(chain.from_iterable(names)))], workers[::-1])
    writers, readers = (np.zeros(record.form.planes[0].shape[:2], int) for _ in range(2))
    for share in record.shares.values():
        mine = np.s_[
            share.layers_first : share.layers_first + share.layers, share.heads_first : share.heads_first + share.heads
        ]
        assert writers[mine].shape == (share.layers, share.heads)
        writers[mine] += share.writes
        readers[mine] += 1
    assert (writers == 1).all()
    assert (readers == replicas).all()


BAD: dict[str, tuple[Callable[[], list[WorkerShape]], str]] = {
    "nobody": (list, "no full grid"),
    "twice the same rank": (lambda: [worker(), worker()], "no full grid"),
    "a rank is missing": (lambda: [worker(), worker(pipeline=1, tensor=1)], "no full grid"),
    "a rank below zero": (lambda: [worker(tensor=-1)], "no full grid"),
    "another machine": (
        lambda: [worker(), replace(worker(tensor=1), machine="there")],
        "differ in their machine.*there",
    ),
    "another packing": (lambda: [worker(), worker(tensor=1, packing="amx")], "differ in their packing.*amx"),
    "other replicas": (lambda: [worker(), worker(tensor=1, replicas=2)], "differ in their replicas"),
    "no replicas": (lambda: [worker(replicas=0)], "0 replicas"),
    "replicas that do not fit": (lambda: [worker(replicas=2)], "no whole number of 2 replicas"),
    "groups missing": (lambda: [worker(held(), held())], "number of groups"),
    "other layers": (lambda: [worker(), worker(held(("a", "b")), tensor=1)], "has 3 layers at tensor rank 0"),
    "layers in two stages": (lambda: [worker(), worker(pipeline=1)], "a is held twice"),
    "no layers": (lambda: [worker(held(()))], "no worker holds a layer"),
    "unknown layers": (lambda: [worker(held(("a", "z")))], "holds z, which is no layer"),
    "other heads": (lambda: [worker(), worker(held(heads=3), tensor=1)], "different shape or dtype"),
    "other content": (lambda: [worker(), worker(held(content=64), tensor=1)], "different shape or dtype"),
    "another dtype": (
        lambda: [worker(), worker(replace(held(), dtype="float16"), tensor=1)],
        "different shape or dtype.*float16",
    ),
    "empty blocks": (lambda: [worker(held(heads=0))], "is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_workers_that_do_not_fit_together_are_refused(case: str) -> None:
    make, words = BAD[case]
    with pytest.raises(ConfigError, match=words):
        record_shapes([group()], make())
