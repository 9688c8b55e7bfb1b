import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.shape import Shape, request_of
from fakes.trial import EngineTrial
from kvist.base.units import Tokens
from kvist.blocks.keys import HashChain, tenant_key, tenant_tag
from kvist.blocks.prefix import PrefixCache
from kvist.blocks.table import BlockTable
from kvist.blocks.window import Retention
from kvist.engine.schedule import plan_step
from kvist.engine.sequence import Sequence

CACHE = PrefixCache(b"", [], [], block_tokens=4)


def sequence(tokens: int, computed: int) -> Sequence:
    """A running sequence with some of its tokens computed."""
    request = request_of("r", (0,) * tokens)
    key = tenant_key(b"", request.tenant)
    table = BlockTable(CACHE, request.id, Retention())
    made = Sequence(request, HashChain(key, block_tokens=4), table, tenant_tag(key))
    made.computed = computed
    return made


def plan(lengths: list[tuple[int, int]], step_tokens: int, size: int = 4) -> list[tuple[int, int]]:
    """The plan for sequences of (tokens, computed), as (index, tokens)."""
    sequences = [sequence(*each) for each in lengths]
    made = plan_step(sequences, step_tokens=step_tokens, block_tokens=size)
    return [(sequences.index(sequence), count) for sequence, count in made]


@pytest.mark.parametrize(
    ("lengths", "step_tokens", "expected"),
    [
        ([], 8, []),
        ([(1, 0)], 8, [(0, 1)]),
        ([(5, 0)], 8, [(0, 5)]),
        ([(8, 0)], 8, [(0, 8)]),
        ([(20, 0)], 8, [(0, 8)]),
        ([(20, 0)], 10, [(0, 8)]),
        ([(20, 0)], 3, [(0, 3)]),
        ([(20, 3)], 3, [(0, 1)]),
        ([(20, 3)], 8, [(0, 5)]),
        ([(20, 17)], 8, [(0, 3)]),
        ([(20, 0), (6, 5)], 8, [(0, 4), (1, 1)]),
        ([(6, 5), (20, 0)], 8, [(0, 1), (1, 4)]),
        ([(6, 5), (20, 0), (7, 6)], 3, [(0, 1), (1, 1), (2, 1)]),
        ([(6, 5), (20, 0), (7, 6)], 2, [(0, 1), (2, 1)]),
        ([(3, 0), (3, 0), (20, 0), (9, 0)], 8, [(0, 3), (1, 3), (2, 2)]),
        ([(6, 0), (20, 0), (9, 0)], 12, [(0, 6), (1, 4), (2, 2)]),
    ],
)
def test_a_step_is_divided(lengths: list[tuple[int, int]], step_tokens: int, expected: list[tuple[int, int]]) -> None:
    assert plan(lengths, step_tokens) == expected


@pytest.mark.parametrize(
    ("lengths", "decodes"), [([(5, 4), (9, 8)], True), ([(5, 4), (9, 7)], False), ([(1, 0)], True), ([(5, 0)], False)]
)
def test_a_step_decodes_if_each_computes_the_one_token_that_is_left(
    lengths: list[tuple[int, int]], *, decodes: bool
) -> None:
    made = plan_step([sequence(*each) for each in lengths], step_tokens=1 + len(lengths), block_tokens=4)
    assert made.decodes is decodes


@st.composite
def running(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Sequences, as (tokens, computed); decoding ones among them."""
    lengths = draw(st.lists(st.integers(1, 60), max_size=8))
    return [(tokens, tokens - min(tokens, draw(st.sampled_from([1, 1, 2, 5, 60])))) for tokens in lengths]


@given(running(), st.integers(0, 40), st.integers(1, 9))
def test_the_laws_of_a_plan(lengths: list[tuple[int, int]], extra: int, size: int) -> None:
    step_tokens = max(1, len(lengths)) + extra
    made = plan(lengths, step_tokens, size)
    given_to = dict(made)
    assert [index for index, _ in made] == sorted(given_to)
    assert sum(given_to.values()) <= step_tokens
    assert bool(made) == bool(lengths)
    decoding = {index for index, (tokens, computed) in enumerate(lengths) if tokens - computed == 1}
    assert all(given_to[index] == 1 for index in decoding)
    left = step_tokens - len(decoding)
    for index, (tokens, computed) in enumerate(lengths):
        if index in decoding:
            continue
        count = given_to.get(index, 0)
        if count < tokens - computed:
            # Whoever is cut short took what was left, up to a block's end or within the block it is in.
            end = computed + count
            assert left - count < size
            assert end % size == 0 or (count == left and end // size == computed // size)
        assert (index in given_to) == (count > 0) == (left > 0)
        left -= count


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 9))
def test_a_prompt_alone_ends_each_chunk_with_a_block_where_the_budget_allows(tokens: int, step: int, size: int) -> None:
    computed, steps = 0, 0
    while computed < tokens:
        ((_, count),) = plan([(tokens, computed)], step, size)
        computed, steps = computed + count, steps + 1
        assert computed == tokens or computed % size == 0 or step < size
    assert steps <= -(-tokens // max(1, step // size * size)) if step >= size else steps <= tokens


def test_a_stream_never_stalls_behind_a_prompt() -> None:
    trial = EngineTrial(Shape(step_tokens=8, block_tokens=4))
    trial.submit(request_of("stream", (0, 1), output=30))
    trial.step()
    trial.submit(request_of("prompt", (1,) * 100, output=1))
    for drawn in range(2, 15):
        trial.step()
        assert len(trial.answer(request_of("stream", ()).id)) == drawn
    trial.drain()
    assert Tokens(trial.core.statistics().tokens_output) == 31
