"""Block tables that begin from blocks still to be loaded: case by case, then at random with a memory behind them."""

from collections import Counter
from functools import partial
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from depth import run_state_machine_until
from kvist.base.errors import CapacityError
from kvist.base.ids import BlockHash, BlockId, RequestId
from kvist.base.units import Tokens
from kvist.blocks.eviction import CopiesFirst
from kvist.blocks.keys import namespace_of
from kvist.blocks.ledger import check_pool
from kvist.blocks.lifecycle import State
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import Hit, PrefixCache
from kvist.blocks.table import BlockTable, Kept
from kvist.blocks.window import Marks
from tables import NOTHING, SIZE, cache_of, chain_of, chain_of_text, check, kept_by, run, table_of


def loads_of(cache: PrefixCache, tokens: int) -> Hit:
    """A hit of so many tokens, of which everything that is not there can be loaded."""
    wants = {(group, index) for group in range(len(cache.pools)) for index in range(tokens // SIZE)}
    hit = cache.assemble(chain_of(tokens), wants, tokens=Tokens(tokens), end="")
    assert hit is not None
    return hit


def land(table: BlockTable, *places: tuple[int, int]) -> None:
    for group, index in places:
        assert table.target(group, index) is not None
        table.land(group, index, chain_of((index + 1) * SIZE)[index])
        assert table.target(group, index) is None


def test_blocks_to_be_loaded_are_allocated_and_found_by_nobody_before_they_have_landed() -> None:
    cache = cache_of(None, 6)
    table = table_of(cache)
    table.take(loads_of(cache, 16))
    assert (table.awaited, table.held_counts(), table.runs()[1][0]) == (6, [4, 2], 2)
    for group, index in ((0, 0), (0, 3), (1, 2)):
        block = table.target(group, index)
        assert block is not None
        assert cache.pools[group].state(block) is State.FILLING
    assert (table.target(1, 1), table.target(1, 0)) == (None, None)  # before the window
    assert cache.residency(chain_of(16), 4) == ([None] * 4, [None] * 4)
    check(cache, table)


def test_once_all_have_landed_in_any_order_the_sequence_goes_on_from_the_hits_end() -> None:
    cache = cache_of(None, 6)
    table = table_of(cache)
    table.take(loads_of(cache, 16))
    land(table, (1, 3), (0, 2), (0, 0), (0, 3))
    assert table.awaited == 2
    assert cache.match(chain_of(18), tokens=18).reached == 4
    land(table, (0, 1), (1, 2))
    assert table.awaited == 0
    check(cache, table)
    assert cache.match(chain_of(18), tokens=18).tokens == 16
    assert kept_by(table, 21) == [(0, 4)]  # what has landed has a copy and is not told
    check(cache, table)


def test_what_is_there_is_held_and_the_rest_is_loaded_around_it() -> None:
    cache = cache_of(None)
    one, two = table_of(cache, "A"), table_of(cache, "B")
    run(one, 8)
    two.take(loads_of(cache, 16))
    assert two.held()[0][:2] == one.held()[0]
    assert (two.awaited, two.target(0, 0)) == (2, None)
    one.release()
    land(two, (0, 3), (0, 2))
    check(cache, one, two)
    run(two, 17)
    assert cache.match(chain_of(17), tokens=17).tokens == 16


def test_taking_never_evicts_what_the_hit_is_made_of() -> None:
    cache = cache_of(None, blocks=4)
    table = table_of(cache)
    run(table, 8)
    table.release()
    table.take(loads_of(cache, 16))
    assert (table.awaited, cache.pools[0].statistics().evicted) == (2, 0)
    check(cache, table)


@pytest.mark.parametrize("cached", [0, 4])
def test_loads_that_the_pools_cannot_spare_are_refused_and_change_nothing(cached: int) -> None:
    cache = PrefixCache(namespace_of({}), [BlockPool(9), BlockPool(3)], [None, None], block_tokens=SIZE)
    table, other = table_of(cache), table_of(cache, "B")
    run(other, cached)
    other.release()
    hit = loads_of(cache, 16)
    assert not table.can_take(hit)
    before = [pool.statistics() for pool in cache.pools]
    with pytest.raises(CapacityError, match=f"A wants to load {hit.loads_count} blocks"):
        table.take(hit)
    assert [pool.statistics() for pool in cache.pools] == before
    assert table.held_counts() == [0, 0]
    check(cache, table, other)
    smaller = loads_of(cache, 12)
    assert table.can_take(smaller)
    table.take(smaller)
    check(cache, table, other)


@pytest.mark.parametrize("landed", [0, 1, 3, 5, 6])
def test_released_at_any_time_what_has_landed_stays_and_the_rest_is_free(landed: int) -> None:
    cache = cache_of(None, 6)
    table = table_of(cache)
    table.take(loads_of(cache, 16))
    land(table, *[(0, 0), (0, 1), (1, 2), (1, 3), (0, 2), (0, 3)][:landed])
    assert table.keep_window() == []
    check(cache, table)
    table.release()
    check(cache, table)
    assert (table.awaited, table.held_counts()) == (0, [0, 0])
    books = [pool.statistics() for pool in cache.pools]
    assert [each.filling + each.held for each in books] == [0, 0]
    assert sum(each.cached for each in books) == landed
    table.take(loads_of(cache, 16))
    assert table.awaited == 6 - landed
    check(cache, table)


def test_what_another_computes_meanwhile_wins() -> None:
    cache = cache_of(None)
    one, two = table_of(cache, "A"), table_of(cache, "B")
    one.take(loads_of(cache, 8))
    run(two, 8)
    land(one, (0, 0), (0, 1))
    assert one.held() == two.held()
    assert cache.pools[0].statistics().sealed == 2
    check(cache, one, two)


def test_two_may_load_the_same() -> None:
    cache = cache_of(None)
    one, two = table_of(cache, "A"), table_of(cache, "B")
    for table in (one, two):
        table.take(loads_of(cache, 8))
    land(one, (0, 1))
    land(two, (0, 0), (0, 1))
    one.release()
    check(cache, one, two)
    assert cache.match(chain_of(9), tokens=9).tokens == 8
    run(two, 9)
    check(cache, one, two)


def test_nothing_is_computed_before_everything_has_landed() -> None:
    table = table_of(cache_of(None))
    table.take(loads_of(table._cache, 8))
    land(table, (0, 0))
    table.grow(9)
    with pytest.raises(AssertionError, match="A computes while 1 blocks are to land"):
        table.commit(chain_of(9), 9, Marks(prompt_tokens=9))


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (0, 7)])
def test_only_what_is_awaited_lands(place: tuple[int, int]) -> None:
    cache = cache_of(None, 4)
    run(table_of(cache, "B"), 4)
    table = table_of(cache)
    table.take(loads_of(cache, 8))
    land(table, (0, 1))
    assert table.target(*place) is None
    with pytest.raises(AssertionError, match="A does not await block"):
        table.land(*place, chain_of(8)[0])
    check_pool(cache.pools[1], {RequestId("A"): table.held()[1], RequestId("B"): [BlockId(0)]})


# At random

OWNERS = ("A", "B", "C")
STORE = RequestId("store")
LONGEST = 6 * SIZE + 1
TEXTS = {"one": [*range(LONGEST)], "two": [*range(3 * SIZE), *range(900, 900 + LONGEST - 3 * SIZE)]}
CHAINS = {name: chain_of_text(tokens) for name, tokens in TEXTS.items()}
WINDOWS = (None, Tokens(6))


class Loader(RuleBasedStateMachine):
    """Sequences that load, compute, end and are copied out, over pools whose content is remembered beside them."""

    operations: ClassVar[Counter[str]] = Counter()

    @initialize(blocks=st.integers(5, 10), below=st.integers(0, 6))
    def start(self, blocks: int, below: int) -> None:
        """The beginnings of both texts are below already, as after a restart."""
        starts = [each for chain in CHAINS.values() for each in chain[:below]]
        self.copied: set[tuple[int, BlockHash]] = {(group, each) for group in range(2) for each in starts}
        pools = [BlockPool(blocks, policy=CopiesFirst(), has_copy=partial(self.has_copy, group)) for group in range(2)]
        self.cache = PrefixCache(namespace_of({}), pools, WINDOWS, block_tokens=SIZE)
        self.tables = {name: BlockTable(self.cache, RequestId(name), NOTHING) for name in OWNERS}
        self.memory: list[dict[BlockId, BlockHash]] = [{}, {}]
        self.texts: dict[str, str] = {}
        self.computed = dict.fromkeys(OWNERS, 0)
        self.stored: list[Kept] = []

    def has_copy(self, group: int, block_hash: BlockHash) -> bool:
        return (group, block_hash) in self.copied

    def idle(self) -> list[str]:
        return [name for name in OWNERS if name not in self.texts]

    def loading(self) -> list[str]:
        return [name for name in self.texts if self.tables[name].awaited]

    @precondition(lambda self: self.idle())
    @rule(data=st.data(), text=st.sampled_from(list(TEXTS)), blocks=st.integers(1, 6))
    def begin(self, data: st.DataObject, text: str, blocks: int) -> None:
        """Whoever begins takes what is there, and loads what has a copy."""
        name, chain = data.draw(st.sampled_from(self.idle())), CHAINS[text]
        wants = {(g, i) for g in range(2) for i in range(blocks) if self.has_copy(g, chain[i])}
        hit = self.cache.assemble(chain, wants, tokens=Tokens(blocks * SIZE), end="")
        if hit is None:
            hit = self.cache.match(chain, tokens=LONGEST)
        table = self.tables[name]
        if not table.can_take(hit):
            with pytest.raises(CapacityError):
                table.take(hit)
            return
        table.take(hit)
        assert table.awaited == hit.loads_count
        self.texts[name], self.computed[name] = text, hit.tokens
        type(self).operations["loading" if hit.loads_count else "at once"] += 1

    @precondition(lambda self: self.loading())
    @rule(data=st.data(), pieces=st.integers(1, 12))
    def land(self, data: st.DataObject, pieces: int) -> None:
        """Some of what a sequence awaits, in any order."""
        name = data.draw(st.sampled_from(self.loading()))
        table, chain = self.tables[name], CHAINS[self.texts[name]]
        for group, index in data.draw(st.permutations(sorted(table._awaited)))[:pieces]:
            block = table.target(group, index)
            assert block is not None
            self.memory[group][block] = chain[index]  # the copy out of staging
            table.land(group, index, chain[index])
            type(self).operations["landed"] += 1

    @precondition(lambda self: len(self.texts) > len(self.loading()))
    @rule(data=st.data(), tokens=st.integers(1, 2 * SIZE), copy=st.booleans())
    def compute(self, data: st.DataObject, tokens: int, copy: bool) -> None:
        name = data.draw(st.sampled_from([name for name in self.texts if not self.tables[name].awaited]))
        table, chain = self.tables[name], CHAINS[self.texts[name]]
        end = min(LONGEST, self.computed[name] + tokens)
        if not table.can_grow(end):
            return
        table.grow(end)
        for group, entries in enumerate(table.groups):
            for index in range(self.computed[name] // SIZE, end // SIZE):
                self.memory[group][entries[index]] = chain[index]
        self.computed[name] = end
        self.offer(table.commit(chain, end, Marks(prompt_tokens=LONGEST - SIZE)), copy=copy)
        type(self).operations["computed"] += 1

    def offer(self, kept: list[Kept], *, copy: bool) -> None:
        """The store holds what it is offered until it has copied it, right away or later."""
        for each in kept:
            pool = self.cache.pools[each.group]
            assert pool.hash(each.block) == each.hash == self.memory[each.group][each.block]
            if copy:
                self.copied.add((each.group, each.hash))
            elif STORE not in pool.holders(each.block):
                pool.hold(each.block, STORE)
                self.stored.append(each)

    @precondition(lambda self: self.stored)
    @rule()
    def copy_out(self) -> None:
        each = self.stored.pop(0)
        assert self.memory[each.group][each.block] == each.hash, "a block changed while it was copied out"
        self.copied.add((each.group, each.hash))
        self.cache.pools[each.group].release(each.block, STORE)
        type(self).operations["copied out"] += 1

    @rule(data=st.data())
    def lose_a_copy(self, data: st.DataObject) -> None:
        if self.copied:
            self.copied.remove(data.draw(st.sampled_from(sorted(self.copied))))

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), copy=st.booleans())
    def end(self, data: st.DataObject, copy: bool) -> None:
        """In any state: waiting for loads, computing, done."""
        name = data.draw(st.sampled_from(list(self.texts)))
        table = self.tables[name]
        type(self).operations["ended while loading" if table.awaited else "ended"] += 1
        self.offer(table.keep_window(), copy=copy)
        table.release()
        assert (table.awaited, table.held_counts()) == (0, [0, 0])
        del self.texts[name]

    @invariant()
    def the_books_balance(self) -> None:
        for group, pool in enumerate(self.cache.pools):
            held = {RequestId(name): table.held()[group] for name, table in self.tables.items()}
            check_pool(pool, held | {STORE: [each.block for each in self.stored if each.group == group]})

    @invariant()
    def what_is_found_is_what_was_written(self) -> None:
        for group, pool in enumerate(self.cache.pools):
            for block in map(BlockId, range(len(pool))):
                block_hash = pool.hash(block)
                assert block_hash is None or self.memory[group][block] == block_hash

    @invariant()
    def every_sequence_reads_its_own_text(self) -> None:
        for name, text in self.texts.items():
            table = self.tables[name]
            for group, (first, blocks) in enumerate(table.runs()):
                for index, block in enumerate(blocks[: self.computed[name] // SIZE - first], first):
                    awaited = (group, index) in table._awaited
                    assert (self.cache.pools[group].state(block) is State.FILLING) == awaited
                    assert awaited or self.memory[group][block] == CHAINS[text][index]


def test_loads_at_random_leave_no_block_unowned_and_none_with_another_content() -> None:
    Loader.operations.clear()
    done = Loader.operations
    names = ("loading", "at once", "landed", "computed", "copied out", "ended", "ended while loading")
    run_state_machine_until(lambda: min(done[name] for name in names) >= 40, Loader, max_examples=120, steps=60)
