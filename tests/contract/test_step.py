"""Every kind of `Step` writes K and V where they belong and attends as attention is defined."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kept_kernels
from depth import examples
from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.base.units import Tokens
from kvist.engine.backends.attention import PagedStep, Step
from kvist.engine.backends.cpu.step import CpuMemory, CpuStep
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.masks import MaskCache
from kvist.engine.backends.tiles import TILE_ROWS, AttentionRule
from kvist.engine.batch import Batch, BlockRun, Chunk, batch_of
from kvist.geometry.groups import KvGroup
from tiny_engine import one_thread

kept_kernels.keep()

CPU = torch.device("cpu")
SIZE, BLOCKS = 4, 64
KV_HEADS, PER_KV_HEAD, HEAD_DIM_K, HEAD_DIM_V = 2, 2, 6, 10
GROUPS = (
    KvGroup(layers=(0, 3), kv_heads=KV_HEADS, head_dim_k=HEAD_DIM_K, head_dim_v=HEAD_DIM_V),
    KvGroup(layers=(1, 2), kv_heads=KV_HEADS, head_dim_k=HEAD_DIM_K, head_dim_v=HEAD_DIM_V, window=Tokens(7)),
)
PLACES = {0: (0, 0), 3: (0, 1), 1: (1, 0), 2: (1, 1)}


def paged(batch: Batch, store: KvStore) -> Step:
    return PagedStep(batch, store, MaskCache(dtype=store.dtype, device=CPU, tile_rows=TILE_ROWS), PLACES)


def by_kernels(batch: Batch, store: KvStore) -> Step:
    return CpuStep(batch, CpuMemory(store, PLACES))


Make = Callable[[Batch, KvStore], Step]
KINDS: dict[str, Make] = {"PagedStep": paged, "CpuStep": by_kernels}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Lays out a step of each kind."""
    with one_thread():
        yield KINDS[request.param]


class Text:
    """K, V and queries of one sequence, [heads, tokens, head_dim], and the blocks that hold them."""

    def __init__(self, computed: int, new: int, blocks: Sequence[int], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.computed, self.tokens, self.blocks = computed, computed + new, blocks
        self.key = torch.randn(KV_HEADS, self.tokens, HEAD_DIM_K, generator=generator)
        self.value = torch.randn(KV_HEADS, self.tokens, HEAD_DIM_V, generator=generator)
        self.query = torch.randn(KV_HEADS * PER_KV_HEAD, new, HEAD_DIM_K, generator=generator)

    def places(self, begin: int, end: int) -> list[int]:
        return [self.blocks[position // SIZE] * SIZE + position % SIZE for position in range(begin, end)]

    def chunk(self, name: str) -> Chunk:
        runs = []
        for group in GROUPS:
            first = 0 if group.window is None else max(0, self.computed - group.window + 1) // SIZE
            runs.append(BlockRun(first=first, blocks=tuple(map(BlockId, self.blocks[first:]))))
        tokens = (TokenId(0),) * (self.tokens - self.computed)
        return Chunk(request_id=RequestId(name), tokens=tokens, start=self.computed, runs=tuple(runs), draw=None)

    def attention(self, rule: AttentionRule) -> torch.Tensor:
        """[new, heads, head_dim_v], by definition."""
        key, value = (each.repeat_interleave(PER_KV_HEAD, 0).double() for each in (self.key, self.value))
        scores = self.query.double() @ key.transpose(1, 2) * rule.scaling
        if rule.softcap is not None:
            scores = torch.tanh(scores / rule.softcap) * rule.softcap
        stands, looks = torch.arange(self.computed, self.tokens)[:, None], torch.arange(self.tokens)[None, :]
        hidden = (looks > stands) | (looks <= stands - (rule.window or self.tokens))
        return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value).transpose(0, 1).float()


def texts_of(lengths: Sequence[tuple[int, int]], blocks: Sequence[int]) -> list[Text]:
    taken = iter(blocks)
    return [
        Text(computed, new, [next(taken) for _ in range(-(-(computed + new) // SIZE))], seed)
        for seed, (computed, new) in enumerate(lengths)
    ]


def store_of(texts: Sequence[Text], layer: int, rest: float) -> KvStore:
    """Holds what was computed before, and `rest` everywhere else."""
    store = KvStore(GROUPS, (BLOCKS, BLOCKS), block_tokens=SIZE, dtype=torch.float32, device=CPU)
    group, place = PLACES[layer]
    for tensor in (*store.keys, *store.values):
        tensor.fill_(rest)
    for text in texts:
        before = text.places(0, text.computed)
        store.keys[group][place][:, before] = text.key[:, : text.computed]
        store.values[group][place][:, before] = text.value[:, : text.computed]
    return store


def rule_of(layer: int, softcap: float | None = None) -> AttentionRule:
    return AttentionRule(window=GROUPS[PLACES[layer][0]].window, scaling=0.4, softcap=softcap)


def call(make: Make, texts: Sequence[Text], store: KvStore, layer: int, rule: AttentionRule) -> torch.Tensor:
    """The layer's output for all new tokens, [tokens, heads, head_dim_v]."""
    batch = batch_of([text.chunk(f"{index}") for index, text in enumerate(texts)], block_tokens=SIZE)
    parts = ([text.query, text.key[:, text.computed :], text.value[:, text.computed :]] for text in texts)
    query, key, value = (torch.cat(each, 1)[None] for each in zip(*parts, strict=True))
    return make(batch, store).layer(layer, query, key, value, rule)[0]


LENGTHS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=4)
ORDERS = st.one_of(st.just(list(range(BLOCKS))), st.permutations(range(BLOCKS)))


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=examples(60))
@given(lengths=LENGTHS, layer=st.sampled_from([0, 1, 2, 3]), blocks=ORDERS, softcap=st.sampled_from([None, 2.0]))
def test_each_sequence_attends_to_its_own_tokens_wherever_they_lie(
    name: str, lengths: list[tuple[int, int]], layer: int, blocks: list[int], softcap: float | None
) -> None:
    texts, rule = texts_of(lengths, blocks), rule_of(layer, softcap)
    with one_thread():
        found = call(KINDS[name], texts, store_of(texts, layer, rest=1e3), layer, rule)
    torch.testing.assert_close(found, torch.cat([text.attention(rule) for text in texts]), atol=2e-5, rtol=0)


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_only_the_new_tokens_of_one_layer_are_written(make: Make, layer: int) -> None:
    texts = texts_of([(5, 3), (0, 1), (9, 20)], [7, 3, 60, 11, 12, 13, 14, 2, 40, 41, 42])
    store = store_of(texts, layer, rest=1e3)
    wanted = [tensor.clone() for tensor in (*store.keys, *store.values)]
    call(make, texts, store, layer, rule_of(layer))
    group, place = PLACES[layer]
    for text in texts:
        new = text.places(text.computed, text.tokens)
        wanted[group][place][:, new] = text.key[:, text.computed :]
        wanted[len(GROUPS) + group][place][:, new] = text.value[:, text.computed :]
    for tensor, expected in zip((*store.keys, *store.values), wanted, strict=True):
        assert torch.equal(tensor, expected)


def test_each_layer_looks_back_as_far_as_its_group(make: Make) -> None:
    texts = texts_of([(0, 1)], [0])
    step = make(batch_of([texts[0].chunk("a")], block_tokens=SIZE), store_of(texts, 0, rest=0.0))
    assert [step.window(layer) for layer in range(4)] == [None, 7, 7, None]
