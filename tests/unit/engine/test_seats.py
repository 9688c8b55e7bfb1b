"""A row is what its sequence's block table lists, however the table came to list it."""

from collections.abc import Sequence as Seq
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from fakes.shape import request_of
from kvist.base.ids import TokenId
from kvist.base.units import Tokens
from kvist.blocks.keys import HashChain, namespace_of, tenant_key, tenant_tag
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.blocks.table import BlockTable
from kvist.blocks.window import Retention
from kvist.engine.batch import Drawn, DrawSpec
from kvist.engine.draw import uniforms
from kvist.engine.request import Sampling
from kvist.engine.schedule import Plan
from kvist.engine.seats import Seats
from kvist.engine.sequence import Sequence

SIZE, SEATS, WINDOW = 4, 3, 6
GREEDY = Sampling(temperature=0)


def planned(sequences: Seq[Sequence], counts: Seq[int]) -> Plan:
    """A plan, which says so where everybody decodes."""
    decodes = all(count == sequence.remaining == 1 for sequence, count in zip(sequences, counts, strict=True))
    return Plan(sequences=list(sequences), counts=list(counts), decodes=decodes)


class Room:
    """A cache of two groups and its seats."""

    def __init__(self, blocks: int = 64) -> None:
        pools = [BlockPool(blocks), BlockPool(blocks)]
        self.cache = PrefixCache(namespace_of({}), pools, [None, Tokens(WINDOW)], block_tokens=SIZE)
        self.seats = Seats(SEATS, groups=2, block_tokens=SIZE)
        self.turns = 0
        self.draws: list[DrawSpec | None] = []

    def sit(self, name: str, prompt: Seq[int], sampling: Sampling = GREEDY) -> Sequence:
        request = replace(request_of(name, tuple(prompt), output=500), sampling=sampling)
        key = tenant_key(b"", request.tenant)
        table = BlockTable(self.cache, request.id, Retention())
        sequence = Sequence(request, HashChain(key, block_tokens=SIZE), table, tenant_tag(key))
        self.resume(sequence)
        return sequence

    def resume(self, sequence: Sequence) -> None:
        self.turns += 1
        chain = sequence.chain.extend_to(sequence.tokens)
        hit = self.cache.match(chain, tokens=len(sequence.tokens))
        sequence.take(hit, self.turns)
        sequence.begin(hit)
        self.seats.seat(sequence)

    def step(self, sequences: Seq[Sequence], counts: Seq[int]) -> None:
        """Computes tokens, draws where the text ends, and compares every row before that and after."""
        for sequence, count in zip(sequences, counts, strict=True):
            sequence.table.grow(sequence.computed + count)
        batch = self.seats.batch(planned(sequences, counts))
        self.draws = list(batch.draws)
        for chunk, sequence, count in zip(batch, sequences, counts, strict=True):
            assert (chunk.request_id, chunk.start) == (sequence.request.id, sequence.computed)
            end = sequence.computed + count
            assert list(chunk.tokens) == sequence.tokens[sequence.computed : end]
            held = [(first, blocks[: -(-end // SIZE) - first]) for first, blocks in sequence.table.runs()]
            assert [(run.first, list(run.blocks)) for run in chunk.runs] == held
            assert (chunk.draw is not None) == (count == sequence.remaining)
        for sequence, count in zip(sequences, counts, strict=True):
            sequence.advance(count, SIZE)
            if not sequence.remaining:
                sequence.append(Drawn(token=TokenId(sequence.tokens_output % 5)))


def test_a_step_of_several_lies_end_to_end() -> None:
    room = Room()
    one, two = room.sit("one", [1, 2, 3, 4, 5]), room.sit("two", [6, 7])
    one.table.grow(3)
    two.table.grow(2)
    batch = room.seats.batch(planned([two, one], [2, 3]))
    assert (list(batch.tokens), list(batch.positions)) == ([6, 7, 1, 2, 3], [0, 1, 0, 1, 2])
    assert (list(batch.starts), list(batch.counts)) == ([0, 0], [2, 3])
    assert list(batch.seats) == [two.seat, one.seat]
    assert [draw is None for draw in batch.draws] == [False, True]


def test_rows_of_a_step_in_which_all_decode_are_one_token_each() -> None:
    room = Room()
    sequences = [room.sit(name, [9] * length) for name, length in (("a", 3), ("b", 7))]
    room.step(sequences, [3, 7])
    for sequence in sequences:
        sequence.table.grow(sequence.computed + 1)
    batch = room.seats.batch(planned(sequences, [1, 1]))
    assert list(batch.positions) == list(batch.starts) == [3, 7]
    assert list(batch.tokens) == [sequence.tokens[-1] for sequence in sequences]
    assert batch.draws == [DrawSpec(GREEDY, 0.0)] * 2


def test_only_where_everybody_is_certain_are_draws_kept_from_step_to_step() -> None:
    room = Room()
    sure, chance = room.sit("sure", [9] * 3), room.sit("chance", [8] * 3, Sampling(temperature=1, seed=7))
    room.step([sure, chance], [3, 3])
    drawn = []
    for _ in range(3):
        room.step([sure, chance], [1, 1])
        drawn.append([room.draws[0], room.draws[1]])
    assert [first for first, _ in drawn] == [DrawSpec(GREEDY, 0.0)] * 3
    assert [second for _, second in drawn] == [
        DrawSpec(Sampling(temperature=1, seed=7), number) for number in uniforms(7, 1, 3)
    ]
    room.step([chance], [1])
    room.step([sure], [1])
    assert room.draws == [DrawSpec(GREEDY, 0.0)]


def test_a_block_that_another_sealed_first_is_in_the_row_of_who_moves_over() -> None:
    room = Room()
    one, two = room.sit("one", [1] * 9), room.sit("two", [1] * 9)
    room.step([one, two], [8, 8])
    assert two.table.held()[0][:2] == one.table.held()[0][:2]
    room.step([one, two], [1, 1])


def test_who_leaves_makes_room_and_who_comes_brings_its_own_blocks() -> None:
    room = Room()
    sequences = [room.sit(f"{index}", [index] * 30) for index in range(SEATS)]
    assert len(room.seats) == 0
    room.step(sequences, [20] * SEATS)
    left = sequences[1]
    room.seats.leave(left)
    left.stop()
    assert (left.seat, len(room.seats)) == (None, 1)
    room.resume(left)
    assert left.computed == 20
    room.step(sequences, [10] * SEATS)


def test_nobody_sits_twice_or_leaves_without_having_sat() -> None:
    room = Room()
    sequence = room.sit("one", [1])
    with pytest.raises(AssertionError, match="one sits already"):
        room.seats.seat(sequence)
    room.seats.leave(sequence)
    with pytest.raises(AssertionError, match="one does not sit"):
        room.seats.leave(sequence)


@settings(max_examples=examples(60))
@given(st.data())
def test_rows_follow_their_tables_through_lives_of_every_kind(data: st.DataObject) -> None:
    room = Room(blocks=400)
    sequences = [room.sit(f"{index}", [0] * data.draw(st.integers(1, 40))) for index in range(SEATS)]
    for _ in range(data.draw(st.integers(1, 25))):
        taking_part = data.draw(st.lists(st.sampled_from(sequences), min_size=1, unique=True))
        room.step(taking_part, [data.draw(st.integers(1, each.remaining)) for each in taking_part])
        interrupted = data.draw(st.one_of(st.none(), st.sampled_from(sequences)))
        if interrupted is not None:
            room.seats.leave(interrupted)
            interrupted.stop()
            room.resume(interrupted)
        assert len({each.seat for each in sequences} - {None}) == SEATS, "each sits, and by itself"


def test_a_row_longer_than_any_before_it_widens_the_table() -> None:
    room = Room(blocks=400)
    short, long = room.sit("short", [1, 2, 3]), room.sit("long", [5] * 1200)
    room.step([short, long], [3, 600])
    room.step([short, long], [1, 600])
    assert room.seats.tables[0].width >= 300
