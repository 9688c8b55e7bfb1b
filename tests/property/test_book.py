"""The books of a tier against a naive model, answer by answer, with an audit after every step.

The clock jumps both ways, tenants run into their quotas, records of several lengths compete for extents, entries are
removed while they are written and read, and the tier comes back after a crash with entries that cannot be right.
"""

from collections import Counter
from dataclasses import replace
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from depth import run_state_machine_until
from fakes.book import NaiveBook, NaiveRow, expired
from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.keys import BlockKey, Namespace, TenantTag
from kvist.fabric.book import Book
from kvist.fabric.claims import BookLimits, Claim, Refused
from kvist.fabric.messages import Ticket
from kvist.tiers.ports import Address, Entry, Place

NAMESPACE = Namespace(bytes(32))
TENANTS = [TenantTag(bytes([number]) * 16) for number in range(3)]
GROUPS = [GroupId(0), GroupId(1)]
KEYS = [
    BlockKey(NAMESPACE, GROUPS[number % 2], "prefix", BlockHash(number.to_bytes(32, "little"))) for number in range(24)
]
OWNERS = [Ticket(number) for number in range(4)]
EXTENT = 64

Keys = st.sampled_from(KEYS)
Owners = st.sampled_from(OWNERS)
Lengths = st.sampled_from([6, 8, 8, 8, 16, 16, 16, 30, 30, 64, 65, 0])
Moments = st.sampled_from([-100.0, -5.0, -1.0, 1.0, 5.0, 100.0])
Times = st.sampled_from([1.0, 5.0, 50.0, 0.0])


def tenant_of(key: BlockKey) -> TenantTag:
    """Hashes are keyed by tenant, so a key has one."""
    return TENANTS[key.hash[0] % 3]


class BookMachine(RuleBasedStateMachine):
    """Does to the books whatever can be done."""

    done: ClassVar[Counter[str]] = Counter()

    @initialize(
        bytes_max=st.sampled_from([extents * EXTENT + 13 for extents in (2, 3, 4, 5, 3, 4)] + [0, 63, 64]),
        quota=st.sampled_from([None, 40, 120]),
        default=st.sampled_from([None, None, 100]),
        records_max=st.sampled_from([None, None, 6, 9]),
    )
    def start(self, bytes_max: int, quota: int | None, default: int | None, records_max: int | None) -> None:
        own = {} if quota is None else {TENANTS[0]: quota}
        self.limits = BookLimits(
            bytes_max=bytes_max,
            extent_bytes=EXTENT,
            alignment=4,
            tenant_bytes_max=own,
            tenant_bytes_default=default,
            records_max=records_max,
        )
        self.book, self.model, self.now = Book(self.limits), NaiveBook(self.limits), 1000.0
        self.serial = 0

    def count(self, name: str, *, when: bool = True) -> None:
        type(self).done[name] += when

    def created(self) -> float:
        """A moment that no other record has, so that what is oldest after a restart is no matter of taste."""
        self.serial += 1
        return self.now + self.serial / 2**16

    def rows(self, *, written: bool = False, held: bool = False) -> list[NaiveRow]:
        rows = self.model.rows
        return [row for row in rows if (not written or row.writer is not None) and (not held or row.holders)]

    def draw_key(self, data: st.DataObject) -> BlockKey:
        """Mostly a key under which there is something, perhaps something that is in use."""
        rows = [row for row in self.model.rows if row.kept] if data.draw(st.booleans()) else []
        return data.draw(st.sampled_from([row.address.key for row in rows or self.model.rows]) | Keys)

    @rule(key=Keys, owner=Owners, record_bytes=Lengths, life=st.none() | Times)
    def reserve(self, key: BlockKey, owner: Ticket, record_bytes: int, life: float | None) -> None:
        expires = None if life is None else self.now + life
        claim = Claim(key=key, tenant=tenant_of(key), record_bytes=record_bytes, expires_unix_s=expires)
        answer = self.book.reserve(claim, owner, self.now)
        self.model.reserve(claim, owner, self.now, answer)
        self.count("refused" if isinstance(answer, Refused) else "reserved")
        self.count("evicting", when=not isinstance(answer, Refused) and bool(answer.evicted))

    @rule(key=Keys, owner=Owners, record_bytes=Lengths, life=st.none() | Times)
    def store(self, key: BlockKey, owner: Ticket, record_bytes: int, life: float | None) -> None:
        self.reserve(key, owner, record_bytes, life)
        row = self.model.row(key)
        if row is not None and row.writer == owner:
            self.committed(row)

    @rule(
        keys=st.lists(Keys, min_size=2, max_size=10),
        owner=Owners,
        record_bytes=st.sampled_from([8, 16, 30]),
        life=st.none() | Times,
    )
    def store_a_chain(self, keys: list[BlockKey], owner: Ticket, record_bytes: int, life: float | None) -> None:
        for key in keys:
            self.store(key, owner, record_bytes, life)

    def committed(self, row: NaiveRow) -> None:
        assert row.writer is not None
        was_doomed = row.doomed is not None
        created = self.created()
        answer = self.book.commit(row.address.key, row.writer, created)
        assert answer == self.model.commit(row, created)
        self.count("commit of a removed one" if was_doomed else "commit")

    @precondition(lambda self: self.rows(written=True))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.committed(data.draw(st.sampled_from(self.rows(written=True))))

    @rule(key=Keys, owner=Owners, data=st.data())
    def remove_what_is_written(self, key: BlockKey, owner: Ticket, data: st.DataObject) -> None:
        self.reserve(key, owner, 8, None)
        row = self.model.row(key)
        if row is not None and row.writer is not None:
            assert self.book.remove(key) == ()
            self.model.remove(row, "purged")
            self.count("remove while kept")
            if data.draw(st.booleans()):
                self.committed(row)

    @precondition(lambda self: self.rows(written=True))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.rows(written=True)))
        assert row.writer is not None
        self.book.cancel(row.address.key, row.writer)
        self.model.rows.remove(row)
        self.count("cancel")

    @precondition(lambda self: self.model.seen())
    @rule(data=st.data(), owner=Owners)
    def hold(self, data: st.DataObject, owner: Ticket) -> None:
        row = data.draw(st.sampled_from(self.model.seen()))
        if owner not in row.holders:
            self.book.hold(row.address.key, owner)
            row.holders.append(owner)
            self.count("hold")

    @precondition(lambda self: self.rows(held=True))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.rows(held=True)))
        owner, was_doomed = data.draw(st.sampled_from(row.holders)), row.doomed is not None
        assert self.book.release(row.address.key, owner) == self.model.release(row, owner)
        self.count("release of a removed one" if was_doomed else "release")

    @precondition(lambda self: len(self.rows(held=True)) > 2)
    @rule(owner=Owners)
    def leave(self, owner: Ticket) -> None:
        """An owner that ends lets go of everything."""
        for row in self.rows(written=True):
            if row.writer == owner:
                self.committed(row)
        for row in self.rows(held=True):
            if owner in row.holders:
                assert self.book.release(row.address.key, owner) == self.model.release(row, owner)

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        key = self.draw_key(data)
        self.book.touch(key)
        row = self.model.row(key)
        if row is not None and row.evictable:
            self.model.used(row)
            self.count("touch")

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), pinned=st.booleans())
    def pin(self, data: st.DataObject, pinned: bool) -> None:
        self.pinned(self.draw_key(data), pinned=pinned)

    @precondition(lambda self: any(row.pinned for row in self.model.seen()))
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        rows = [row for row in self.model.seen() if row.pinned]
        self.pinned(data.draw(st.sampled_from(rows)).address.key, pinned=False)

    def pinned(self, key: BlockKey, *, pinned: bool) -> None:
        answer = self.book.pin(key, pinned=pinned)
        row = next((row for row in self.model.seen() if row.address.key == key), None)
        if row is not None and row.pinned != pinned:
            row.pinned = pinned
            if row.evictable:
                self.model.used(row)
            self.count("pin" if pinned else "unpin")
        assert answer == (row and row.entry())

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), cause=st.sampled_from(["purged", "quarantined", "lost"]))
    def remove(self, data: st.DataObject, cause: str) -> None:
        key = self.draw_key(data)
        calls = {"purged": self.book.remove, "quarantined": self.book.quarantine, "lost": self.book.lose}
        row = self.model.row(key)
        self.count("remove while kept", when=row is not None and row.kept)
        assert set(calls[cause](key)) == (self.model.remove(row, cause) if row else set())
        self.count("remove", when=row is not None)

    @precondition(lambda self: len(self.model.rows) > 4)
    @rule(tenant=st.sampled_from([*TENANTS, *TENANTS, *TENANTS, None]))
    def purge(self, tenant: TenantTag | None) -> None:
        rows = [row for row in list(self.model.rows) if tenant in {None, row.address.tenant}]
        right = set().union(*(self.model.remove(row, "purged") for row in rows))
        assert set(self.book.purge(tenant)) == right
        self.count("purge", when=bool(right))

    @rule(seconds=Moments)
    def jump(self, seconds: float) -> None:
        self.now += seconds

    @rule(seconds=Moments)
    def expire(self, seconds: float) -> None:
        self.now += seconds
        rows = [row for row in self.model.seen() if expired(row.expires, self.now)]
        right = set().union(*(self.model.remove(row, "expired") for row in rows))
        assert set(self.book.expire(self.now)) == right
        self.count("expire", when=bool(rows))

    @precondition(lambda self: len(self.model.rows) > 6)
    @rule(
        strange=st.lists(
            st.tuples(Keys, st.integers(-8, 400), Lengths, st.none() | st.just(float("nan")) | Times), max_size=3
        ),
        bytes_max=st.sampled_from([extents * EXTENT for extents in (5, 4, 3, 2, 1)]),
    )
    def restart(self, strange: list[tuple[BlockKey, int, int, float | None]], bytes_max: int) -> None:
        """The tier has what was acknowledged, and perhaps what nobody wrote; the budget may be another one."""
        entries = [row.entry() for row in self.model.rows if row.created is not None]
        for key, offset, record_bytes, life in strange:
            place = None if offset % 7 == 0 else Place(offset=offset - offset % 4, length=-(-record_bytes // 4) * 4)
            entries.append(
                Entry(
                    address=Address(key=key, tenant=tenant_of(key), place=place),
                    record_bytes=record_bytes,
                    created_unix_s=self.created(),
                    expires_unix_s=None if life is None else self.now + life,
                    pinned=offset % 5 == 0,
                )
            )
        self.limits = replace(self.limits, bytes_max=bytes_max)
        self.book, self.model = Book(self.limits), NaiveBook(self.limits)
        refused = self.book.restore(entries, self.now)
        assert self.book.statistics().stored == len(entries) == len(refused) + self.book.statistics().resident
        self.adopt(entries, list(refused))

    def adopt(self, entries: list[Entry], refused: list[Address]) -> None:
        """Each refusal has a reason in what was kept; the model goes on with what the books kept."""
        kept = list(self.book.entries())
        for entry in sorted(kept, key=lambda each: each.created_unix_s):
            self.model.rows.append(
                NaiveRow(
                    entry.address,
                    entry.record_bytes,
                    entry.expires_unix_s,
                    created=entry.created_unix_s,
                    pinned=entry.pinned,
                )
            )
        self.model.check_places()
        left = Counter(entry.address for entry in entries) - Counter(entry.address for entry in kept)
        assert Counter(refused) == left
        for entry in entries:
            assert entry in kept or self.cannot_be_kept(entry), entry
        assert not any(expired(entry.expires_unix_s, self.now) for entry in kept)
        books = self.book.statistics()
        self.model.stored, self.model.gone = (
            books.stored,
            Counter({"expired": books.expired, "evicted": books.evicted, "lost": books.lost}),
        )
        self.count("restart", when=bool(kept))
        self.count("restart refusing", when=bool(refused))

    def cannot_be_kept(self, entry: Entry) -> bool:
        """Whether nothing more could be kept: expired, malformed, or in the way of what is kept."""
        place, tenant, quota = entry.address.place, entry.address.tenant, self.model.quota(entry.address.tenant)
        if expired(entry.expires_unix_s, self.now) or place is None or self.model.row(entry.address.key):
            return True
        if self.model.is_full(len(self.model.rows)):
            return True
        size, length = EXTENT, self.model.length(entry.record_bytes)
        if place.length != length or not 0 < length <= size or not 0 <= place.offset < len(self.model.extents()) * size:
            return True
        if place.offset % size % length or place.offset % size + length > size:
            return True
        if quota is not None and self.model.bytes_of(tenant) + length > quota:
            return True
        extent = self.model.extents()[place.offset // size]
        return any(row.place.length != length or row.place.offset == place.offset for row in extent)

    @invariant()
    def every_answer_is_the_models(self) -> None:
        book, model, now = self.book, self.model, self.now
        assert [book.find(key, now) for key in KEYS] == [model.find(key, now) for key in KEYS]
        for tenant in (None, *TENANTS):
            mine = {row.entry() for row in model.seen() if tenant in {None, row.address.tenant}}
            assert set(book.entries(tenant)) == mine
        for group in GROUPS:
            for tenant in TENANTS:
                keys = [key for key in KEYS if key.group == group]
                right = [tenant_of(key) == tenant and model.find(key, now) is not None for key in keys]
                assert book.have(NAMESPACE, group, [key.hash for key in keys], tenant, now) == right
        books = book.statistics()
        assert (books.stored, books.writing) == (model.stored, len(self.rows(written=True)))
        assert books.bytes_used == sum(row.place.length for row in model.rows) <= self.limits.bytes_max
        assert self.limits.records_max is None or len(model.rows) <= self.limits.records_max
        gone = ("evicted", "expired", "purged", "quarantined", "lost")
        assert [getattr(books, cause) for cause in gone] == [model.gone[cause] for cause in gone]

    @invariant()
    def everything_adds_up(self) -> None:
        owners = {row.writer for row in self.rows(written=True)} | {each for row in self.rows() for each in row.holders}
        self.book.audit({owner for owner in owners if owner is not None})


def test_thousands_of_operations_agree_with_the_model() -> None:
    BookMachine.done.clear()
    done = BookMachine.done
    usual = ("reserved", "refused", "commit", "hold", "release", "touch", "evicting", "remove")
    rare = ("cancel", "pin", "unpin", "remove while kept", "purge", "expire", "restart", "restart refusing")
    rarest = ("commit of a removed one", "release of a removed one")

    def is_enough() -> bool:
        often = done.total() >= 3000 and min(done[name] for name in usual) >= 10
        return often and min(done[name] for name in (*rare, *rarest)) >= 3

    run_state_machine_until(is_enough, BookMachine, max_examples=120, steps=80)
