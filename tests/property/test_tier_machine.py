"""Every tier and every wrapper against a naive model, answer by answer.

The machine is what the fabric is to a tier: it says which place a record gets, and uses it again only once the record
there has been deleted. After every step the tier must list and give exactly what the model has.
"""

from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from depth import run_state_machine_until
from fakes.tiers import (
    BLUE,
    FUTURE_UNIX_S,
    MAKERS,
    PAST_UNIX_S,
    RED,
    Maker,
    Trial,
    key_of,
    read_of,
    write_of,
)
from kvist.base.errors import TierError
from kvist.tiers.ports import Absent, Address, Damaged, Found, Lender, Place, Stored, Tier, Write

pytestmark = pytest.mark.slow

SIZES = (512, 514, 600, 4096, 5000)
PLACES = 4
Numbers = st.integers(0, 5)
Sizes = st.sampled_from(SIZES)
Expiries = st.sampled_from([None, None, None, FUTURE_UNIX_S, FUTURE_UNIX_S, PAST_UNIX_S])
Tenants = st.sampled_from([None, BLUE, RED])


@dataclass(slots=True)
class Row:
    """One record of the model."""

    write: Write
    expires: float | None
    pinned: bool = False


class TierMachine(RuleBasedStateMachine):
    """Does to a tier and to its model whatever the fabric may do."""

    maker: ClassVar[Maker]
    operations: ClassVar[Counter[str]]

    @initialize()
    def start(self) -> None:
        self.context: AbstractContextManager[Trial] = self.maker()
        self.trial = self.context.__enter__()
        self.tier: Tier = self.trial.tier
        self.rows: dict[Address, Row] = {}
        self.gone: set[Address] = set()
        self.free = [self.trial.place(max(SIZES)) for _ in range(PLACES)]
        self.version = 0

    def count(self, name: str, times: int = 1) -> None:
        type(self).operations[name] += times

    def known(self, number: int) -> Address:
        """An address of a key: where it is, else where it once was, else where it never was."""
        for addresses in (self.rows, sorted(self.gone, key=str)):
            for address in addresses:
                if address.key == self.fresh(number, None).key:
                    return address
        return self.fresh(number, self.free[0] if self.free else self.elsewhere())

    def fresh(self, number: int, place: Place | None) -> Address:
        tenant = RED if number % 3 == 0 else BLUE
        return Address(key=key_of(number, tenant), tenant=tenant, place=place)

    def elsewhere(self) -> Place | None:
        return next(iter(self.rows)).place

    def is_up(self, expires: float | None) -> bool:
        """Whether a tier that watches the time itself has let go of such a record."""
        return not self.trial.placed and expires == PAST_UNIX_S

    def forget(self, address: Address) -> bool:
        self.gone.add(address)
        if self.rows.pop(address, None) is None:
            return False
        self.free.append(address.place)
        return True

    @rule(wanted=st.lists(st.tuples(Numbers, Sizes, Expiries), min_size=1, max_size=5))
    def write(self, wanted: list[tuple[int, int, float | None]]) -> None:
        writes: list[Write] = []
        for number, size, expires in wanted:
            address = self.known(number)
            if address not in self.rows:
                if not self.free:
                    continue
                address = self.fresh(number, self.free.pop(0))
            self.count("write again" if address in self.rows else "write")
            self.version += 1
            writes.append(write_of(address, size, self.version, expires))
            self.rows[address] = Row(writes[-1], expires)
        outcomes = self.tier.write(writes)
        assert len(outcomes) == len(writes)
        for outcome, write in zip(outcomes, writes, strict=True):
            assert outcome == Stored() or self.is_up(write.expires_unix_s), outcome
        for address in [address for address, row in self.rows.items() if self.is_up(row.expires)]:
            self.forget(address)

    @rule(numbers=st.lists(Numbers, max_size=6))
    def find(self, numbers: list[int]) -> None:
        addresses = [self.known(number) for number in numbers]
        assert list(self.tier.find(addresses)) == [address in self.rows for address in addresses]
        self.count("find")

    @rule(wanted=st.lists(st.tuples(Numbers, Sizes, st.booleans()), min_size=1, max_size=6))
    def read(self, wanted: list[tuple[int, int, bool]]) -> None:
        reads = []
        for number, size, right in wanted:
            address = self.known(number)
            row = self.rows.get(address)
            reads.append(read_of(address, row.write.record.nbytes if row is not None and right else size))
        for read, outcome in zip(reads, self.tier.read(reads), strict=True):
            row = self.rows.get(read.address)
            if row is None:
                assert isinstance(outcome, Absent | Damaged)
            elif row.write.record.nbytes != read.into.nbytes:
                assert isinstance(outcome, Damaged)
            else:
                assert outcome == Found()
                assert read.into == row.write.record
            self.count(f"read {type(outcome).__name__}")

    @rule(numbers=st.lists(Numbers, max_size=3))
    def delete(self, numbers: list[int]) -> None:
        addresses = [self.known(number) for number in numbers]
        assert list(self.tier.delete(addresses)) == [self.forget(address) for address in addresses]
        self.count("delete", len(addresses))

    @rule(numbers=st.lists(Numbers, max_size=3), pinned=st.booleans(), expires=Expiries)
    def keep(self, numbers: list[int], pinned: bool, expires: float | None) -> None:
        if self.is_up(expires):  # whether a record that goes is still there when it is named again is left open
            numbers = list(dict.fromkeys(numbers))
        addresses = [self.known(number) for number in numbers]
        kept = list(self.tier.keep(addresses, pinned=pinned, expires_unix_s=expires))
        assert kept == [address in self.rows for address in addresses]
        for address in [address for address in addresses if address in self.rows]:
            self.rows[address].expires, self.rows[address].pinned = expires, pinned
            if self.is_up(expires):
                self.forget(address)
        self.count("keep", len(addresses))

    @rule(tenant=Tenants)
    def entries(self, tenant: bytes | None) -> None:
        entries = list(self.tier.entries(tenant))
        listed = [entry.address for entry in entries]
        ages = [entry.created_unix_s for entry in entries]
        assert not self.trial.knows_ages or ages == sorted(ages)
        right = {address for address in self.rows if tenant in (None, address.tenant)}
        assert len(listed) == len(right)
        assert set(listed) == right
        self.count("entries")

    @rule()
    def lend(self) -> None:
        if isinstance(self.tier, Lender):
            places = self.tier.lend(list(self.rows))
            for place, row in zip(places, self.rows.values(), strict=True):
                assert place[: row.write.record.nbytes] == row.write.record
        self.count("lend")

    @invariant()
    def every_record_is_listed_and_can_be_read(self) -> None:
        entries = {entry.address: entry for entry in self.tier.entries()}
        assert set(entries) == set(self.rows)
        reads = [read_of(address, row.write.record.nbytes) for address, row in self.rows.items()]
        assert list(self.tier.read(reads)) == [Found()] * len(reads)
        for read, (address, row) in zip(reads, self.rows.items(), strict=True):
            assert read.into == row.write.record
            entry = entries[address]
            assert entry.record_bytes == row.write.record.nbytes
            assert entry.expires_unix_s == (row.expires and pytest.approx(row.expires, abs=2))
            assert not self.trial.placed or entry.pinned == row.pinned
        records = self.tier.statistics().records
        assert records in (None, len(self.rows))

    def teardown(self) -> None:
        if not hasattr(self, "context"):
            return
        self.tier.close()
        for call in (lambda: self.tier.find([]), lambda: self.tier.read([]), lambda: list(self.tier.entries())):
            with pytest.raises(TierError):
                call()
        self.context.__exit__(None, None, None)


@pytest.mark.parametrize("name", MAKERS)
def test_answers_are_those_of_the_model(name: str) -> None:
    machine = type("Machine", (TierMachine,), {"maker": staticmethod(MAKERS[name]), "operations": Counter()})
    tried = ("write", "write again", "find", "delete", "keep", "entries", "read Found", "read Damaged", "read Absent")
    done = machine.operations
    run_state_machine_until(lambda: min(done[each] for each in tried) >= 20, machine, max_examples=40, steps=40)
