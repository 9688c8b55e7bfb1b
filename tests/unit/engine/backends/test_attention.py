"""One layer's call over the pool: where K and V land, what is read, and that neighbours and gaps change nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AttentionInterface

from depth import examples
from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.base.units import Tokens
from kvist.engine.backends.attention import IMPLEMENTATION, PagedStep, layer_index, register
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.masks import MaskCache
from kvist.engine.backends.tiles import TILE_ROWS, AttentionRule
from kvist.engine.batch import BlockRun, Chunk, batch_of
from kvist.geometry.groups import KvGroup

CPU = torch.device("cpu")
SIZE, BLOCKS = 4, 64
KV_HEADS, PER_KV_HEAD, HEAD_DIM_K, HEAD_DIM_V = 2, 2, 6, 10
GROUPS = (
    KvGroup(layers=(0, 3), kv_heads=KV_HEADS, head_dim_k=HEAD_DIM_K, head_dim_v=HEAD_DIM_V),
    KvGroup(layers=(1, 2), kv_heads=KV_HEADS, head_dim_k=HEAD_DIM_K, head_dim_v=HEAD_DIM_V, window=Tokens(7)),
)
PLACES = {0: (0, 0), 3: (0, 1), 1: (1, 0), 2: (1, 1)}


class Sequence:
    """K and V of one sequence, [kv_heads, tokens, head_dim], and the blocks that hold them."""

    def __init__(self, computed: int, new: int, blocks: list[int], generator: torch.Generator) -> None:
        self.computed, self.tokens = computed, computed + new
        self.key = torch.randn(KV_HEADS, self.tokens, HEAD_DIM_K, generator=generator)
        self.value = torch.randn(KV_HEADS, self.tokens, HEAD_DIM_V, generator=generator)
        self.query = torch.randn(KV_HEADS * PER_KV_HEAD, new, HEAD_DIM_K, generator=generator)
        self.blocks = blocks

    def run(self, window: int | None) -> BlockRun:
        """The live blocks: with a window only what the first new query still reads."""
        first = 0 if window is None else max(0, self.computed - window + 1) // SIZE
        return BlockRun(first=first, blocks=tuple(BlockId(block) for block in self.blocks[first:]))

    def chunk(self, name: str) -> Chunk:
        return Chunk(
            request_id=RequestId(name),
            tokens=(TokenId(0),) * (self.tokens - self.computed),
            start=self.computed,
            runs=tuple(self.run(group.window) for group in GROUPS),
            draw=None,
        )

    def place(self, position: int) -> int:
        """Where in the pool a position lies."""
        return self.blocks[position // SIZE] * SIZE + position % SIZE

    def attention(self, window: int | None, rule: AttentionRule) -> torch.Tensor:
        """[new, heads, head_dim_v], by definition."""
        key, value = (each.repeat_interleave(PER_KV_HEAD, 0).double() for each in (self.key, self.value))
        scores = self.query.double() @ key.transpose(1, 2) * rule.scaling
        stands = torch.arange(self.computed, self.tokens)[:, None]
        looks = torch.arange(self.tokens)[None, :]
        hidden = (looks > stands) | (looks <= stands - (window or self.tokens))
        return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value).transpose(0, 1)


def sequences_of(lengths: list[tuple[int, int]], blocks: list[int]) -> list[Sequence]:
    generator = torch.Generator().manual_seed(5)
    taken = iter(blocks)
    return [
        Sequence(computed, new, [next(taken) for _ in range(-(-(computed + new) // SIZE))], generator)
        for computed, new in lengths
    ]


def pool(sequences: list[Sequence], layer: int) -> KvStore:
    """A store in which the computed part of each sequence lies in its blocks, and everything else is not a number."""
    store = KvStore(GROUPS, (BLOCKS, BLOCKS), block_tokens=SIZE, dtype=torch.float32, device=CPU)
    group, place = PLACES[layer]
    for tensor in (*store.keys, *store.values):
        tensor.fill_(float("nan"))
    for each in sequences:
        for position in range(each.computed):
            store.keys[group][place][:, each.place(position)] = each.key[:, position]
            store.values[group][place][:, each.place(position)] = each.value[:, position]
    return store


def call(sequences: list[Sequence], store: KvStore, layer: int, rule: AttentionRule) -> torch.Tensor:
    """The layer's output for all new tokens, [tokens, heads, head_dim_v]."""
    chunks = [each.chunk(f"{index}") for index, each in enumerate(sequences)]
    batch = batch_of(chunks, block_tokens=SIZE)
    masks = MaskCache(dtype=torch.float32, device=CPU, tile_rows=TILE_ROWS)
    step = PagedStep(batch, store, masks, PLACES)
    query, key, value = (
        torch.cat([each.query for each in sequences], 1),
        torch.cat([each.key[:, each.computed :] for each in sequences], 1),
        torch.cat([each.value[:, each.computed :] for each in sequences], 1),
    )
    return step.layer(layer, query[None], key[None], value[None], rule)[0]


def rule_of(layer: int) -> AttentionRule:
    return AttentionRule(window=GROUPS[PLACES[layer][0]].window, scaling=0.4, softcap=None)


lengths_of_batches = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), min_size=1, max_size=5)


orders = st.one_of(st.just(list(range(BLOCKS))), st.permutations(range(BLOCKS)))


@settings(max_examples=examples(80))
@given(lengths=lengths_of_batches, layer=st.sampled_from([0, 1, 2, 3]), blocks=orders)
def test_each_sequence_attends_to_its_own_tokens_wherever_they_lie(
    lengths: list[tuple[int, int]], layer: int, blocks: list[int]
) -> None:
    sequences, rule = sequences_of(lengths, blocks), rule_of(layer)
    store = pool(sequences, layer)
    found = call(sequences, store, layer, rule)
    expected = torch.cat([each.attention(rule.window, rule) for each in sequences])
    torch.testing.assert_close(found, expected.float(), atol=2e-5, rtol=0)


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_only_the_new_tokens_of_one_layer_are_written(layer: int) -> None:
    sequences = sequences_of([(5, 3), (0, 1), (9, 9)], [7, 3, 60, 11, 12, 13, 14, 2])
    store = pool(sequences, layer)
    before = [tensor.clone() for tensor in (*store.keys, *store.values)]
    call(sequences, store, layer, rule_of(layer))
    group, place = PLACES[layer]
    after = (*store.keys, *store.values)
    for each in sequences:
        for position in range(each.computed, each.tokens):
            for old, new, source in (
                (before[group], store.keys[group], each.key),
                (before[len(GROUPS) + group], store.values[group], each.value),
            ):
                assert torch.equal(new[place][:, each.place(position)], source[:, position])
                old[place][:, each.place(position)] = source[:, position]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old.nan_to_num(99.0), new.nan_to_num(99.0)), "something else was written"


@pytest.mark.parametrize("layer", [0, 1])
def test_consecutive_and_scattered_blocks_give_the_same_bits(layer: int) -> None:
    lengths = [(17, 5), (30, 1), (0, 9)]
    scattered = [40, 2, 33, 7, 21, 63, 0, 13, 50, 51, 4, 29, 18, 9, 62, 35, 1, 22]
    results = []
    for blocks in (list(range(BLOCKS)), scattered):
        sequences = sequences_of(lengths, blocks)
        results.append(call(sequences, pool(sequences, layer), layer, rule_of(layer)))
    assert torch.equal(*results)


def test_each_layer_looks_back_as_far_as_its_group() -> None:
    sequences = sequences_of([(0, 1)], [0])
    masks = MaskCache(dtype=torch.float32, device=CPU, tile_rows=TILE_ROWS)
    step = PagedStep(batch_of([sequences[0].chunk("a")], block_tokens=SIZE), pool(sequences, 0), masks, PLACES)
    assert [step.window(layer) for layer in range(4)] == [None, 7, 7, None]


def test_a_module_without_a_layer_is_our_mistake() -> None:
    module = torch.nn.Linear(1, 1)
    module.layer_idx = None
    with pytest.raises(AssertionError, match="Linear has no layer index"):
        layer_index(module)


def test_registering_twice_changes_nothing() -> None:
    register()
    first = AttentionInterface()[IMPLEMENTATION]
    register()
    assert AttentionInterface()[IMPLEMENTATION] is first
