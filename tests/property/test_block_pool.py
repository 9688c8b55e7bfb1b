"""The block pool against a naive model, answer by answer, and against the memory that its holders read.

The memory stands for the tensors of a backend: an owner writes into a block when it gets it and when it seals it. After
every operation each holder reads each of its blocks and must find what it believes is there.
"""

from collections import Counter
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
from fakes.pool import NaivePool
from kvist.base.errors import CapacityError
from kvist.base.ids import BlockHash, BlockId, RequestId
from kvist.blocks.ledger import check_pool
from kvist.blocks.pool import BlockPool

OWNERS = [RequestId(name) for name in "ABCD"]
HASHES = [BlockHash(number.to_bytes(32, "little")) for number in range(10)]

Owners = st.sampled_from(OWNERS)
Hashes = st.sampled_from(HASHES)


class PoolMachine(RuleBasedStateMachine):
    """Does to a pool and to its model whatever can be done, right or wrong."""

    operations: ClassVar[Counter[str]] = Counter()

    @initialize(blocks=st.integers(1, 8))
    def start(self, blocks: int) -> None:
        self.pool, self.model = BlockPool(blocks), NaivePool(blocks)
        self.memory: list[object] = [None] * blocks
        self.believed: dict[tuple[RequestId, BlockId], object] = {}

    def count(self, name: str) -> None:
        type(self).operations[name] += 1

    def blocks(self) -> list[BlockId]:
        return [BlockId(block) for block in range(len(self.pool))]

    def mine(self, owner: RequestId) -> list[BlockId]:
        return [block for holder, block in self.believed if holder == owner]

    def write(self, block: BlockId, owner: RequestId, content: object) -> None:
        """What a backend would do on behalf of the owner, who then believes in it."""
        self.memory[block] = self.believed[owner, block] = content

    @rule(owner=Owners)
    def allocate(self, owner: RequestId) -> None:
        right = self.model.may_be_allocated()
        if not right:
            with pytest.raises(CapacityError, match=f"all {len(self.pool)} blocks"):
                self.pool.allocate(owner)
            self.count("allocate refused")
            return
        block = self.pool.allocate(owner)
        assert block in right
        self.model.allocate(block, owner)
        self.write(block, owner, ("half written by", owner))
        self.count("allocate")

    @rule(owner=Owners, count=st.integers(2, 6))
    def allocate_run(self, owner: RequestId, count: int) -> None:
        free, cached = self.model.blocks_in("free"), self.model.blocks_in("cached")
        oldest = sorted(cached, key=lambda block: self.model.rows[block].cached_since or 0)
        if count > len(free) + len(cached):
            with pytest.raises(CapacityError, match=f"all {len(self.pool)} blocks but {len(free) + len(cached)} are"):
                self.pool.allocate_run(owner, count)
            self.count("allocate run refused")
            return
        blocks = self.pool.allocate_run(owner, count)
        assert blocks == sorted(set(blocks))
        assert len(blocks) == count
        assert set(blocks) <= set(free) or set(blocks) == {*free, *oldest[: count - len(free)]}
        for block in blocks:
            self.model.allocate(block, owner)
            self.write(block, owner, ("half written by", owner))
        self.count("allocate run")

    def fillings(self) -> list[tuple[RequestId, BlockId]]:
        return [(owner, block) for owner, block in self.believed if self.model.rows[block].hash is None]

    def commit(self, owner: RequestId, block: BlockId, block_hash: BlockHash, *, keep: bool) -> None:
        duplicate = self.model.find(block_hash) is not None
        self.write(block, owner, block_hash)  # the last tokens of the block
        answer = self.pool.seal(block, owner, block_hash, keep=keep)
        assert answer == self.model.seal(block, owner, block_hash, keep=keep)
        del self.believed[owner, block]
        self.believed[owner, answer] = block_hash
        self.count("seal duplicate" if duplicate else "seal")

    @precondition(lambda self: self.fillings())
    @rule(data=st.data(), block_hash=Hashes, keep=st.booleans())
    def seal(self, data: st.DataObject, block_hash: BlockHash, keep: bool) -> None:
        owner, block = data.draw(st.sampled_from(self.fillings()))
        if self.model.may_seal(block, owner, block_hash):
            self.commit(owner, block, block_hash, keep=keep)

    @precondition(lambda self: self.fillings() and self.model.blocks_in("cached") + self.model.blocks_in("held"))
    @rule(data=st.data(), keep=st.booleans())
    def seal_what_another_has_sealed(self, data: st.DataObject, keep: bool) -> None:
        owner, block = data.draw(st.sampled_from(self.fillings()))
        keys = [
            block_hash
            for block_hash in HASHES
            if self.model.find(block_hash) is not None and self.model.may_seal(block, owner, block_hash)
        ]
        if keys:
            self.commit(owner, block, data.draw(st.sampled_from(keys)), keep=keep)

    @rule(owner=Owners, block_hash=Hashes, keep=st.booleans())
    def allocate_and_seal(self, owner: RequestId, block_hash: BlockHash, keep: bool) -> None:
        self.allocate(owner)
        for _, block in [each for each in self.fillings() if each[0] == owner]:
            if self.model.may_seal(block, owner, block_hash):
                self.commit(owner, block, block_hash, keep=keep)

    @precondition(lambda self: self.model.blocks_in("cached") + self.model.blocks_in("held"))
    @rule(data=st.data(), owner=Owners)
    def hold(self, data: st.DataObject, owner: RequestId) -> None:
        block = data.draw(st.sampled_from(self.model.blocks_in("cached") + self.model.blocks_in("held")))
        if not self.model.holds(block, owner):
            self.pool.hold(block, owner)
            self.model.hold(block, owner)
            self.believed[owner, block] = self.model.rows[block].hash
            self.count("hold")

    def give_back(self, owner: RequestId, block: BlockId) -> None:
        self.pool.release(block, owner)
        self.model.release(block, owner)
        del self.believed[owner, block]
        self.count("release")

    @precondition(lambda self: self.believed)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.give_back(*data.draw(st.sampled_from(list(self.believed))))

    @precondition(lambda self: len(self.believed) > 3)
    @rule(owner=Owners)
    def leave(self, owner: RequestId) -> None:
        """An owner that ends gives everything back; nothing of it is left anywhere."""
        for block in reversed(self.mine(owner)):
            self.give_back(owner, block)
        assert not any(owner in self.pool.holders(block) for block in self.blocks())

    @precondition(lambda self: self.model.blocks_in("cached") + self.model.blocks_in("held"))
    @rule(data=st.data(), keep=st.booleans())
    def keep(self, data: st.DataObject, keep: bool) -> None:
        block = data.draw(st.sampled_from(self.model.blocks_in("cached") + self.model.blocks_in("held")))
        assert self.pool.keep(block, keep=keep) == (keep and not self.model.rows[block].kept)
        self.model.rows[block].kept |= keep
        self.count("keep")

    @rule(data=st.data(), owner=Owners, block_hash=Hashes)
    def misuse(self, data: st.DataObject, owner: RequestId, block_hash: BlockHash) -> None:
        """Wrong use raises; the invariants see to it that nothing has changed."""
        block, model = data.draw(st.sampled_from(self.blocks())), self.model
        wrong = {
            "seal": (model.may_seal(block, owner, block_hash), lambda: self.pool.seal(block, owner, block_hash)),
            "hold": (model.may_hold(block, owner), lambda: self.pool.hold(block, owner)),
            "release": (model.holds(block, owner), lambda: self.pool.release(block, owner)),
            "keep": (model.rows[block].hash is not None, lambda: self.pool.keep(block)),
        }
        for name, (right, call) in wrong.items():
            if not right:
                with pytest.raises(AssertionError):
                    call()
                self.count(f"{name} refused")

    @invariant()
    def every_answer_is_the_models(self) -> None:
        pool, model = self.pool, self.model
        for block, row in enumerate(model.rows):
            answer = (pool.state(BlockId(block)).value, pool.holders(BlockId(block)), pool.hash(BlockId(block)))
            assert answer == (row.state, set(row.holders), row.hash), f"block {block}"
        assert [pool.find(block_hash) for block_hash in HASHES] == [model.find(block_hash) for block_hash in HASHES]
        counts = {state: len(model.blocks_in(state)) for state in ("free", "filling", "held", "cached")}
        assert pool.available == counts["free"] + counts["cached"]
        books = pool.statistics()
        assert {state: getattr(books, state) for state in counts} == counts
        assert (books.sealed, books.evicted, books.discarded) == (model.sealed, model.evicted, model.discarded)

    @invariant()
    def the_books_balance(self) -> None:
        check_pool(self.pool, {owner: self.mine(owner) for owner in OWNERS})

    @invariant()
    def every_holder_reads_what_it_believes(self) -> None:
        for (owner, block), content in self.believed.items():
            assert self.memory[block] == content, f"{owner} reads block {block}"
        for block in self.model.blocks_in("cached"):
            assert self.memory[block] == self.model.rows[block].hash, f"block {block} is cached and not what it was"


def test_ten_thousand_operations_agree_with_the_model() -> None:
    PoolMachine.operations.clear()
    done = PoolMachine.operations
    tried = ("allocate", "allocate run", "seal", "seal duplicate", "hold", "release", "keep")
    refused = [f"{name} refused" for name in ("allocate", "allocate run", "seal", "hold", "release", "keep")]

    def is_enough() -> bool:
        return done.total() >= 10_000 and min(done[name] for name in (*tried, *refused)) >= 100

    run_state_machine_until(is_enough, PoolMachine, max_examples=120, steps=100)
