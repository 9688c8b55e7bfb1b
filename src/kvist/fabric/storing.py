"""The life of stores: room in staging, one stamp, a write to every tier that should have it.

    offer ─▶ room ── copied ──▶ stamped ─▶ tier 1 ─▶ acknowledged
      │        └── withdrawn           └─▶ tier 2 ─▶ ...            the room is free when all have reported
      └─▶ declined                                                  what was loaded from below is written here too

Never waits: what there is no room for is declined and counted.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from kvist.blocks.form import Header
from kvist.blocks.keys import BlockKey, TenantTag
from kvist.fabric.desk import Desk
from kvist.fabric.jobs import Report, Stamped, StampJob
from kvist.fabric.messages import Declined, Offer, Room, Ticket, TierName
from kvist.fabric.parcels import Parcel, Subject, payload_of, staged_bytes
from kvist.fabric.policies import Candidate
from kvist.fabric.tier_state import TierState
from kvist.fabric.writing import Copy, Writing


class Storing:
    """All stores. Called under control's lock.

    Attributes:
        dropped: blocks that were given room and then not stored.
        is_closing: whether offers are no longer taken.
    """

    def __init__(self, desk: Desk, writing: Writing) -> None:
        """Shares the desk, and writes through `writing`."""
        self._desk = desk
        self._writing = writing
        self._rooms: dict[Ticket, Parcel] = {}
        self._stamping: dict[Ticket, Parcel] = {}
        self._keys: set[BlockKey] = set()
        self._refused: dict[Ticket, set[TierName]] = {}
        self._unsent = 0
        self.dropped = 0
        self.is_closing = False

    @property
    def running(self) -> int:
        """Blocks that are being stamped."""
        return len(self._stamping)

    def live(self) -> set[Ticket]:
        """Owners of rooms, and of records that are being stamped."""
        return self._rooms.keys() | self._stamping.keys()

    def offer(self, offer: Offer) -> Room | Declined:
        """See `kvist.fabric.control.Fabric.offer`."""
        key = BlockKey(self._desk.namespace, offer.group, "prefix", offer.hash)
        subject = Subject(
            key=key,
            tenant=offer.tenant,
            index=offer.index,
            record_bytes=self._desk.record_bytes[offer.group],
        )
        reason = self._why_not(subject)
        if reason is not None:
            return Declined(reason=reason)
        parcel = self._desk.parcels.to_store(subject)
        if parcel is None:
            self._desk.dispatch.starved()
            return Declined(reason="busy")
        self._rooms[parcel.owner] = parcel
        self._keys.add(key)
        self._unsent += parcel.staged_bytes
        return Room(ticket=parcel.owner, buffer=payload_of(parcel.buffer))

    def store(self, rooms: Sequence[Room]) -> None:
        """See `kvist.fabric.control.Fabric.store`."""
        desk = self._desk
        created = desk.calendar.now_unix_s()
        expires = desk.settings.policies.retention.expires_unix_s(created)
        size = desk.settings.piece_records
        for first in range(0, len(rooms), size):
            parcels = [self._rooms.pop(room.ticket) for room in rooms[first : first + size]]
            self._drop(each for each in parcels if self._is_void(each))
            copies = [
                Copy(parcel=each, created_unix_s=created, expires_unix_s=expires)
                for each in parcels
                if not self._is_void(each)
            ]
            if copies:
                self._stamp(copies)

    def withdraw(self, room: Room) -> None:
        """See `kvist.fabric.control.Fabric.withdraw`."""
        self._drop([self._rooms.pop(room.ticket)])

    def refuse(self, tier: TierState, tenant: TenantTag | None) -> None:
        """What has room or is being stamped, of all or of one tenant, is not to be written to a tier any more."""
        for owner, parcel in (*self._rooms.items(), *self._stamping.items()):
            if tenant in {None, parcel.subject.tenant}:
                self._refused.setdefault(owner, set()).add(tier.name)

    def _why_not(self, subject: Subject) -> Literal["stored", "not admitted", "no tier", "busy"] | None:
        desk, key = self._desk, subject.key
        targets = self._targets(desk.clock.now_s())
        if self.is_closing or not targets:
            return "no tier"
        now_unix_s = desk.calendar.now_unix_s()
        missing = [tier for tier in targets if not self._writing.is_there(tier, key, now_unix_s)]
        if key in self._keys or not missing:
            return "stored"
        candidate = Candidate(
            tenant=subject.tenant,
            group=key.group,
            index=subject.index,
            record_bytes=subject.record_bytes,
        )
        if not desk.settings.policies.admission.admits(candidate):
            return "not admitted"
        size = staged_bytes(subject.record_bytes)
        storing = desk.parcels.bytes_storing
        if storing and storing + size > desk.store_bytes_max:  # one block always has a chance
            return "busy"
        if any(tier.writes_full(self._unsent + size) for tier in missing):
            desk.dispatch.starved()
            return "busy"
        return None

    def _targets(self, now_s: float) -> list[TierState]:
        """Where a new block should be written, of the tiers in use."""
        names = [tier.name for tier in self._desk.tiers if tier.writable(now_s)]
        return [self._desk.by_name[name] for name in self._desk.settings.policies.placement.stores(names)]

    def _stamp(self, copies: Sequence[Copy]) -> None:
        desk = self._desk
        orders = tuple((copy.parcel.buffer, self._header(copy)) for copy in copies)
        job = StampJob(ticket=desk.dispatch.new_ticket(), orders=orders)

        def stamped(report: Report) -> None:
            for copy in copies:
                del self._stamping[copy.parcel.owner]
            if isinstance(report, Stamped):
                for tier in self._targets(desk.clock.now_s()):
                    self._writing.write(tier, [copy for copy in copies if self._goes_to(tier, copy)])
                for copy in copies:
                    self._leave(copy.parcel)
            else:
                self._drop(copy.parcel for copy in copies)

        if desk.dispatch.send(job, None, stamped, now_s=desk.clock.now_s()):
            self._stamping.update((copy.parcel.owner, copy.parcel) for copy in copies)
        else:
            self._drop(copy.parcel for copy in copies)

    def _goes_to(self, tier: TierState, copy: Copy) -> bool:
        return tier.name not in self._refused.get(copy.parcel.owner, ())

    def _header(self, copy: Copy) -> Header:
        subject, block_tokens = copy.parcel.subject, self._desk.settings.block_tokens
        return Header(
            key=subject.key,
            tenant=subject.tenant,
            form=self._desk.settings.forms[subject.key.group],
            first_position=subject.index * block_tokens,
            tokens_valid=block_tokens,
            created_unix_s=copy.created_unix_s,
            expires_unix_s=copy.expires_unix_s,
        )

    def _is_void(self, parcel: Parcel) -> bool:
        """Whether it was offered in a namespace that is over."""
        return parcel.subject.key.namespace != self._desk.namespace

    def _drop(self, parcels: Iterable[Parcel]) -> None:
        for parcel in parcels:
            self.dropped += 1
            self._leave(parcel)

    def _leave(self, parcel: Parcel) -> None:
        self._keys.discard(parcel.subject.key)
        self._refused.pop(parcel.owner, None)
        self._unsent -= parcel.staged_bytes
        self._desk.parcels.leave(parcel, parcel.owner)
