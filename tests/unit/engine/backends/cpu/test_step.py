"""One step on a CPU: where K and V land, what few and many rows read, and that it is what torch's path computes."""

import pytest
import torch

from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.base.units import Tokens
from kvist.engine.backends.attention import PagedStep
from kvist.engine.backends.cpu.kernel import Program, run
from kvist.engine.backends.cpu.step import ROWS_FEW, ROWS_KEPT, CpuMemory, CpuStep
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.masks import MaskCache
from kvist.engine.backends.tiles import TILE_ROWS, AttentionRule
from kvist.engine.batch import Batch, BlockRun, Chunk, batch_of
from kvist.geometry.groups import KvGroup

CPU = torch.device("cpu")
SIZE, BLOCKS, WINDOW = 16, 64, 40
KV_HEADS, HEADS, WIDTH_K, WIDTH_V = 2, 6, 32, 48
GROUPS = (
    KvGroup(layers=(0, 2), kv_heads=KV_HEADS, head_dim_k=WIDTH_K, head_dim_v=WIDTH_V),
    KvGroup(layers=(1,), kv_heads=KV_HEADS, head_dim_k=WIDTH_K, head_dim_v=WIDTH_V, window=Tokens(WINDOW)),
)
PLACES = {0: (0, 0), 2: (0, 1), 1: (1, 0)}
MIXED = [(0, 1), (17, 1), (100, ROWS_FEW), (90, ROWS_FEW + 1), (0, 70), (130, 1)]
SCATTERED = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(6)).tolist()


def batch_like(lengths: list[tuple[int, int]], order: list[int]) -> Batch:
    """Chunks of sequences (computed, new) whose blocks are taken in this order; both groups use the same numbers."""
    blocks, chunks = iter(order), []
    for index, (start, new) in enumerate(lengths):
        taken = tuple(BlockId(next(blocks)) for _ in range(-(-(start + new) // SIZE)))
        firsts = [0 if group.window is None else max(0, start - group.window + 1) // SIZE for group in GROUPS]
        chunks.append(
            Chunk(
                request_id=RequestId(f"{index}"),
                tokens=(TokenId(0),) * new,
                start=start,
                runs=tuple(BlockRun(first=first, blocks=taken[first:]) for first in firsts),
                draw=None,
            )
        )
    return batch_of(chunks, block_tokens=SIZE)


def store(dtype: torch.dtype) -> KvStore:
    made = KvStore(GROUPS, (BLOCKS, BLOCKS), block_tokens=SIZE, dtype=dtype, device=CPU)
    generator = torch.Generator().manual_seed(4)
    for tensor in (*made.keys, *made.values):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return made


def new_rows(rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value as transformers' layers give them."""
    generator = torch.Generator().manual_seed(5)
    shapes = ((1, HEADS, rows, WIDTH_K), (1, KV_HEADS, rows, WIDTH_K), (1, KV_HEADS, rows, WIDTH_V))
    query, key, value = (torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)
    return query, key, value


def rule_of(layer: int) -> AttentionRule:
    return AttentionRule(window=GROUPS[PLACES[layer][0]].window, scaling=0.2, softcap=None)


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("order", [list(range(BLOCKS)), SCATTERED], ids=["consecutive", "scattered"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_a_layer_gives_what_torch_s_path_gives(
    layer: int, order: list[int], dtype: torch.dtype, tolerance: float
) -> None:
    batch = batch_like(MIXED, order)
    rows = new_rows(len(batch.positions), dtype)
    ours, theirs = store(dtype), store(dtype)
    masks = MaskCache(dtype=dtype, device=CPU, tile_rows=TILE_ROWS)
    found = CpuStep(batch, CpuMemory(ours, PLACES)).layer(layer, *rows, rule_of(layer))
    expected = PagedStep(batch, theirs, masks, PLACES).layer(layer, *rows, rule_of(layer))
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)
    for one, other in zip((*ours.keys, *ours.values), (*theirs.keys, *theirs.values), strict=True):
        assert torch.equal(one, other), "K and V went elsewhere"


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_where_new_rows_go(layer: int) -> None:
    batch = batch_like(MIXED, SCATTERED)
    memory = CpuMemory(store(torch.float32), PLACES)
    target = CpuStep(batch, memory).target(layer)
    group, place = PLACES[layer]
    assert target.keys.data_ptr() == memory.store.keys[group][place].data_ptr()
    assert target.values.data_ptr() == memory.store.values[group][place].data_ptr()
    expected = [
        chunk.runs[group].blocks[position // SIZE - chunk.runs[group].first] * SIZE + position % SIZE
        for chunk in batch
        for position in range(chunk.start, chunk.start + len(chunk.tokens))
    ]
    assert target.places.tolist() == expected


def test_attention_in_a_program_is_the_same() -> None:
    batch = batch_like([(500, 1), (17, 1), (100, 8)], SCATTERED)
    step = CpuStep(batch, CpuMemory(store(torch.float32), PLACES))
    query = new_rows(len(batch.positions), torch.float32)[0][0].transpose(0, 1).contiguous()
    for layer in PLACES:
        program, out = Program(), torch.empty(len(query), HEADS, WIDTH_V)
        step.add_attention(layer, query, rule_of(layer), out, program)
        run(program)
        assert torch.equal(out, step.attend(layer, query, rule_of(layer)))


def test_a_program_does_what_later_steps_want() -> None:
    """Of as many rows: of other sequences, with contexts in one piece or several, with a prefix that some share."""
    memory = CpuMemory(store(torch.float32), PLACES)
    query = new_rows(3, torch.float32)[0][0].transpose(0, 1).contiguous()
    shared = [*SCATTERED[:8], *SCATTERED[8:10], *SCATTERED[:8], *SCATTERED[10:]]
    steps = (
        ([(5, 1), (17, 2)], SCATTERED),
        ([(500, 1), (17, 1), (300, 1)], list(range(BLOCKS))),
        ([(150, 1), (140, 1), (3, 1)], shared),
        ([(30, 3)], SCATTERED[::-1]),
    )
    programs: dict[int, tuple[Program, torch.Tensor]] = {}
    for lengths, order in steps:
        step = CpuStep(batch_like(lengths, order), memory)
        for layer in PLACES:
            if layer not in programs:
                programs[layer] = Program(), torch.empty(3, HEADS, WIDTH_V)
                step.add_attention(layer, query, rule_of(layer), programs[layer][1], programs[layer][0])
            run(programs[layer][0])
            assert torch.equal(programs[layer][1], step.attend(layer, query, rule_of(layer)))
            alone = CpuStep(batch_like(lengths, order), CpuMemory(memory.store, PLACES))
            assert torch.equal(programs[layer][1], alone.attend(layer, query, rule_of(layer)))
            assert torch.equal(step.target(layer).places, alone.target(layer).places)


@pytest.mark.parametrize("rows", [1, ROWS_KEPT])
def test_places_of_few_rows_are_where_they_were(rows: int) -> None:
    memory = CpuMemory(store(torch.float32), PLACES)
    orders = list(range(BLOCKS)), SCATTERED
    found = [CpuStep(batch_like([(0, 1)] * rows, order), memory).target(0).places for order in orders]
    assert found[0].data_ptr() == found[1].data_ptr()
    assert found[1].tolist() == [block * SIZE for block in SCATTERED[:rows]]


def test_many_rows_are_in_no_program() -> None:
    batch = batch_like(MIXED, SCATTERED)
    step = CpuStep(batch, CpuMemory(store(torch.float32), PLACES))
    query = torch.zeros(len(batch.positions), HEADS, WIDTH_K)
    with pytest.raises(AssertionError, match="many rows"):
        step.add_attention(0, query, rule_of(0), torch.empty(len(query), HEADS, WIDTH_V), Program())


def test_what_steps_hold_does_not_grow_with_their_number() -> None:
    memory = CpuMemory(store(torch.float32), PLACES)
    query = new_rows(sum(new for _, new in MIXED), torch.float32)[0][0].transpose(0, 1).contiguous()
    seen = []
    for _ in range(3):
        CpuStep(batch_like(MIXED, SCATTERED), memory).attend(0, query, rule_of(0))
        seen.append(memory.scratch.nbytes)
    assert 0 < seen[0] == seen[2]


def test_each_layer_looks_back_as_far_as_its_group() -> None:
    step = CpuStep(batch_like([(0, 1)], [0]), CpuMemory(store(torch.float32), PLACES))
    assert [step.window(layer) for layer in range(3)] == [None, WINDOW, None]
