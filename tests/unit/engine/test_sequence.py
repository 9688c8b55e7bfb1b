from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.shape import request_of
from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.base.units import Tokens
from kvist.blocks.keys import HashChain, namespace_of, tenant_key, tenant_tag
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import Hit, PrefixCache
from kvist.blocks.table import BlockTable
from kvist.blocks.window import Retention
from kvist.engine.batch import Drawn, DrawSpec
from kvist.engine.draw import uniform
from kvist.engine.request import Sampling
from kvist.engine.sequence import Sequence, Work

SIZE = 4


def sequence_of(prompt: int = 10, output: int = 5, *, stops: tuple[int, ...] = (), name: str = "r") -> Sequence:
    cache = PrefixCache(namespace_of({}), [BlockPool(64), BlockPool(64)], [None, Tokens(6)], block_tokens=SIZE)
    return on(cache, request_of(name, (0,) * prompt, output=output, stops=stops))


def on(cache: PrefixCache, request) -> Sequence:
    key = tenant_key(b"", request.tenant)
    chain = HashChain(key, block_tokens=SIZE)
    return Sequence(request, chain, BlockTable(cache, request.id, Retention()), tenant_tag(key))


def match(sequence: Sequence) -> Hit:
    cache = sequence.table._cache
    return cache.match(sequence.chain.extend_to(sequence.tokens), tokens=len(sequence.tokens))


def start(sequence: Sequence, hit: Hit, turn: int) -> int:
    """Lets it run; the prompt tokens that count as cached from now on."""
    sequence.take(hit, turn)
    return len(sequence.begin(hit))


def advance(sequence: Sequence, count: int) -> tuple[int, int, int]:
    """Computes tokens; returns how many were new, how many were not, and the blocks filled."""
    sequence.table.grow(sequence.computed + count)
    return counts(sequence.advance(count, SIZE))


def counts(work: Work) -> tuple[int, int, int]:
    return work.prompt, work.again, work.blocks


def test_a_new_sequence_has_everything_to_compute() -> None:
    sequence = sequence_of(10, 5)
    assert (sequence.remaining, sequence.tokens_bound, sequence.computed) == (10, 14, 0)
    assert sequence.table.held_counts() == [0, 0]


def test_what_is_computed_counts_prompt_tokens_and_blocks() -> None:
    sequence = sequence_of(10)
    assert advance(sequence, 3) == (3, 0, 0)
    assert advance(sequence, 6) == (6, 0, 2)
    assert advance(sequence, 1) == (1, 0, 0)
    assert sequence.remaining == 0
    for filled in (0, 1, 0, 0, 0, 1):
        sequence.append(Drawn(token=TokenId(1)))
        assert sequence.remaining == 1
        assert advance(sequence, 1) == (0, 0, filled)


def test_a_token_is_drawn_after_the_last_and_only_there() -> None:
    sequence = sequence_of(10)
    assert [sequence.draw_after(count) is None for count in (1, 8, 9, 10)] == [True, True, True, False]
    advance(sequence, 8)
    assert [sequence.draw_after(count) is None for count in (1, 2)] == [True, False]


def test_each_draw_has_the_number_of_its_place_in_the_output() -> None:
    sequence = sequence_of(2, 100)
    for place in range(70):
        sequence.table.grow(len(sequence.tokens))
        draw = sequence.draw_after(sequence.remaining)
        assert draw is not None
        assert (draw.uniform, draw.sampling) == (uniform(0, place), sequence.request.sampling)
        sequence.advance(sequence.remaining, SIZE)
        sequence.append(Drawn(token=TokenId(1)))


def test_a_draw_that_is_left_to_nothing_takes_no_number() -> None:
    request = replace(request_of("r", (0,) * 4), sampling=Sampling(temperature=0, seed=3))
    sequence = on(sequence_of().table._cache, request)
    advance(sequence, 4)
    for _ in range(2):
        assert sequence.draw_after(0) == DrawSpec(request.sampling, 0.0)
        sequence.append(Drawn(token=TokenId(1)))
        advance(sequence, 1)


@pytest.mark.parametrize(
    ("drawn", "reasons"),
    [
        ([1, 1, 1], [None, None, "length"]),
        ([1, 2], [None, "stop"]),
        ([1, 1, 2], [None, None, "stop"]),
        ([2], ["stop"]),
    ],
)
def test_a_sequence_ends_at_its_bound_or_with_a_stop_token(drawn: list[int], reasons: list[str | None]) -> None:
    sequence = sequence_of(4, 3, stops=(2,))
    assert [sequence.append(Drawn(token=TokenId(token))) for token in drawn] == reasons
    assert sequence.tokens_output == len(drawn)
    assert sequence.tokens[4:] == drawn


def test_a_hit_is_where_computing_begins() -> None:
    first = sequence_of(10)
    advance(first, 10)
    second = on(first.table._cache, request_of("s", (0,) * 11))
    assert start(second, match(second), 3) == 8
    assert (second.computed, second.tokens_cached, second.turn, second.remaining) == (8, 8, 3, 3)
    assert advance(second, 3) == (3, 0, 0)


def test_a_sequence_that_is_resumed_counts_each_token_once() -> None:
    """Preempted after 8 of 10 prompt tokens and resumed with nothing cached, in smaller chunks."""
    sequence = sequence_of(10)
    nothing = match(sequence)
    assert advance(sequence, 8) == (8, 0, 2)
    sequence.stop()
    assert (sequence.computed, sequence.table.held_counts()) == (0, [0, 0])
    assert start(sequence, nothing, 2) == 0
    assert advance(sequence, 4) == (0, 4, 1)
    assert advance(sequence, 6) == (2, 4, 1)


def test_what_was_computed_and_is_then_found_is_not_counted_as_cached() -> None:
    sequence = sequence_of(10)
    advance(sequence, 10)
    sequence.stop()
    assert start(sequence, match(sequence), 2) == 0
    assert (sequence.computed, sequence.tokens_cached) == (8, 0)
    assert advance(sequence, 2) == (0, 2, 0)


def test_output_that_is_found_again_is_not_counted_as_prompt() -> None:
    sequence = sequence_of(6, 20)
    advance(sequence, 6)
    for _ in range(8):
        sequence.append(Drawn(token=TokenId(1)))
        advance(sequence, 1)
    sequence.append(Drawn(token=TokenId(1)))
    sequence.stop()
    assert start(sequence, match(sequence), 2) == 0
    assert sequence.computed == 12
    assert advance(sequence, 3) == (0, 2, 0)


def test_a_hit_after_preemption_counts_what_is_beyond_the_work_done() -> None:
    sequence = sequence_of(14)
    nothing = match(sequence)
    start(sequence, nothing, 1)
    advance(sequence, 4)
    sequence.stop()
    other = on(sequence.table._cache, request_of("s", (0,) * 14))
    start(other, match(other), 2)
    advance(other, other.remaining)
    assert start(sequence, match(sequence), 3) == 8
    assert (sequence.computed, sequence.tokens_cached) == (12, 8)
    assert advance(sequence, 2) == (2, 0, 0)


@given(st.data(), st.integers(1, 30))
def test_cached_and_computed_prompt_tokens_add_up_however_often_it_is_interrupted(
    data: st.DataObject, prompt: int
) -> None:
    sequence = sequence_of(prompt, 20)
    cached = fresh = again = total = 0
    for turn in range(data.draw(st.integers(1, 6))):
        if data.draw(st.booleans()):
            for pool in sequence.table._cache.pools:
                evict_all(pool)
        before = sequence.computed_ever
        cached += start(sequence, match(sequence), turn)
        assert before <= sequence.computed_ever
        for _ in range(data.draw(st.integers(0, 5))):
            if sequence.remaining:
                count = data.draw(st.integers(1, sequence.remaining))
                prompts, agains, blocks = advance(sequence, count)
                assert min(prompts, agains, blocks) >= 0
                fresh, again, total = fresh + prompts, again + agains, total + count
            if not sequence.remaining:
                sequence.append(Drawn(token=TokenId(1)))
        sequence.stop()
    assert cached == sequence.tokens_cached
    assert cached + fresh == min(prompt, sequence.computed_ever)
    # What is neither of the prompt nor done before is output, computed for the first time.
    assert 0 <= total - fresh - again <= sequence.tokens_output


def evict_all(pool: BlockPool) -> None:
    """Somebody else needs every block, for a moment."""
    other = RequestId("other")
    taken = [pool.allocate(other) for _ in range(pool.available)]
    for block in taken:
        pool.release(BlockId(block), other)
