"""How the items of loads are read: held, sent in pieces, and what is done with what comes, or does not.

    wanted ── staging, a free lane ──▶ reading ── verified ──▶ arrived
                                          └── absent, damaged, tier broken ──▶ wanted from another tier, or failed

Pieces are small, so that the engine copies the first ones while the others are still read.
"""

from collections import deque
from collections.abc import Sequence

from kvist.base.ids import BlockHash
from kvist.blocks.form import HEADER_BYTES
from kvist.blocks.keys import BlockKey
from kvist.fabric.desk import Desk
from kvist.fabric.jobs import Loaded, LoadJob, LoadOrder, Report
from kvist.fabric.loads import Item, Load
from kvist.fabric.messages import Want
from kvist.fabric.parcels import Subject, staged_bytes
from kvist.fabric.tier_state import TierState
from kvist.fabric.writing import Copy, Writing
from kvist.tiers.ports import Absent, Address, Damaged, Entry, Found, ReadOutcome


class Reading:
    """Reads for loads. Called under control's lock."""

    def __init__(self, desk: Desk, writing: Writing) -> None:
        """Shares the desk; what was read from below is written to tiers above through `writing`."""
        self._desk = desk
        self._writing = writing

    def want(self, load: Load, wants: Sequence[Want], chain: Sequence[BlockHash]) -> None:
        """Holds and queues what a load wants; what is no longer where it was planned from is looked for elsewhere."""
        now_unix_s = self._desk.calendar.now_unix_s()
        namespace, forms, sizes = self._desk.namespace, self._desk.settings.forms, self._desk.record_bytes
        for want in wants:
            tier = self._desk.by_name[want.tier]
            key = BlockKey(namespace, want.group, "prefix", chain[want.index])
            item = Item(want, forms[want.group], sizes[want.group], key)
            if not self._queue(load, item, tier, now_unix_s):
                self._look_elsewhere(load, item)

    def fetch(self, load: Load, tier: TierState, entries: Sequence[Entry]) -> None:
        """Queues records as a tier lists them, whatever their model, for an errand.

        What staging can never hold is left unread; what is shorter than a header is no record, and need not be read.
        """
        assert load.errand is not None, "only errands fetch"
        now_unix_s = self._desk.calendar.now_unix_s()
        for index, entry in enumerate(entries):
            key = entry.address.key
            known = key.namespace == self._desk.namespace and key.group < len(self._desk.settings.forms)
            form = self._desk.settings.forms[key.group] if known else None
            item = Item(Want(key.group, index, tier.name), form, entry.record_bytes, key)
            if entry.record_bytes < HEADER_BYTES:
                item.tier, item.address = tier, entry.address
                self._judge(item, Damaged(reason=f"{entry.record_bytes} bytes are no record"))
                load.errand.damaged += 1
            elif not self._desk.parcels.can_ever_hold(entry.record_bytes):
                load.errand.unread += 1
            elif not self._queue(load, item, tier, now_unix_s):
                load.errand.absent += 1

    def send_piece(self, load: Load, tier: TierState, now_s: float) -> bool:
        """Sends the next piece that a load wants from a tier; whether there was room for one."""
        queue = load.wanted.get(tier)
        if queue is None:
            return False
        if tier.reads.state(now_s) == "open":
            del load.wanted[tier]
            if load.errand is not None:
                load.errand.unread += len(queue)
            for item in queue:
                self._miss(load, item)
            return False
        piece = self._cut(load, tier, queue)
        if not piece or not self._send(load, tier, piece, now_s):
            queue.extendleft(reversed(piece))
            for item in piece:
                self._unstage(load, item)
            return False
        if not queue:
            load.wanted.pop(tier, None)
        return True

    def give_back(self, load: Load, item: Item) -> None:
        """Ends whatever a load holds for an item: staging, and its hold in the books."""
        self._unstage(load, item)
        if item.is_held:
            item.is_held = False
            assert item.tier.book is not None, f"{item.tier.name} has no books to hold anything"
            removed = item.tier.book.release(item.key, load.ticket)
            if removed is not None:
                self._writing.owe(item.tier, (removed,))

    # ---- asking

    def _queue(self, load: Load, item: Item, tier: TierState, now_unix_s: float) -> bool:
        """Holds the record in a tier and queues it; False: the tier does not have it."""
        item.tier = tier
        if tier.book is not None:
            entry = tier.book.find(item.key, now_unix_s)
            if entry is None or entry.address.tenant != load.tenant:
                return False
            tier.book.hold(item.key, load.ticket)
            item.address, item.is_held = entry.address, True
        else:
            item.address = Address(key=item.key, tenant=load.tenant)
        load.want(item)
        return True

    def _cut(self, load: Load, tier: TierState, queue: deque[Item]) -> list[Item]:
        """Takes the next items out of a queue, as many as there is staging for."""
        piece: list[Item] = []
        nbytes = 0
        while queue and len(piece) < self._desk.settings.piece_records:
            item = queue[0]
            if not tier.lends or load.errand is not None:
                nbytes += staged_bytes(item.record_bytes)
                if (piece and nbytes > tier.bytes_share) or tier.reads_full(nbytes):
                    break
                subject = Subject(
                    key=item.key,
                    tenant=load.tenant,
                    index=item.want.index,
                    record_bytes=item.record_bytes,
                )
                item.parcel = self._desk.parcels.to_load(subject, load.ticket)
                if item.parcel is None:
                    self._desk.dispatch.starved()
                    break
            piece.append(queue.popleft())
        return piece

    def _send(self, load: Load, tier: TierState, piece: Sequence[Item], now_s: float) -> bool:
        buffers = [None if item.parcel is None else item.parcel.buffer for item in piece]
        orders = tuple(
            [LoadOrder(item.address, item.form, buffer) for item, buffer in zip(piece, buffers, strict=True)]
        )
        nbytes = sum(item.record_bytes for item in piece)
        ticket = self._desk.dispatch.new_ticket()
        job = LoadJob(ticket=ticket, tier=tier.name, orders=orders, deadline_s=load.deadline_s)

        def read(report: Report) -> None:
            tier.bytes_loading -= nbytes
            self._read(load, tier, report, load.reading.pop(ticket))

        staged = sum([staged_bytes(item.record_bytes) for item in piece if item.parcel is not None])
        if not self._desk.dispatch.send(job, tier, read, now_s=now_s, nbytes=staged):
            return False
        tier.bytes_loading += nbytes
        load.reading[ticket] = tuple(piece)
        return True

    # ---- what came

    def _read(self, load: Load, tier: TierState, report: Report, items: Sequence[Item]) -> None:
        if not isinstance(report, Loaded):
            if load.errand is not None:
                load.errand.unread += len(items)
            for item in items:
                self._miss(load, item)
            return
        if all(isinstance(outcome, Found) for outcome in report.outcomes):
            nbytes = sum(item.record_bytes for item in items)
            tier.speed = tier.speed.learned(nbytes, report.seconds, now_s=self._desk.clock.now_s())
        copies: list[Copy] = []
        for item, told in zip(items, report.outcomes, strict=True):
            outcome = self._placed(load, item, told)
            if isinstance(outcome, Found):
                self._arrive(load, item, outcome, copies)
            else:
                self._judge(item, outcome)
                self._tally(load, outcome)
                self._miss(load, item)
        self._promote(load, tier, copies)
        if load.is_given_up or load.errand is not None:
            for item in items:
                self.give_back(load, item)

    def _arrive(self, load: Load, item: Item, found: Found, copies: list[Copy]) -> None:
        assert found.header is not None, "a record was handed on unproven"
        if item.parcel is not None:
            copy = Copy(
                parcel=item.parcel,
                created_unix_s=found.header.created_unix_s,
                expires_unix_s=found.header.expires_unix_s,
            )
            copies.append(copy)
        self._tally(load, found)
        if not load.is_given_up and load.errand is None:
            item.tier.tally.loaded += 1
            load.arrived.append(item)
            if item.parcel is not None and item.is_held:  # its bytes are in staging: the place may go
                parcel, item.parcel = item.parcel, None
                self.give_back(load, item)
                item.parcel = parcel

    def _placed(self, load: Load, item: Item, outcome: ReadOutcome) -> ReadOutcome:
        """What came, unless it is a block of another length or place in its sequence than the one that was wanted.

        Nobody knows from where in a sequence an errand's records are, nor how long blocks of other models are.
        """
        header = outcome.header if isinstance(outcome, Found) else None
        if header is None or item.form is None:
            return outcome
        block_tokens = self._desk.settings.block_tokens
        first = header.first_position
        right = first % block_tokens == 0 if load.errand is not None else first == item.want.index * block_tokens
        if right and header.tokens_valid == block_tokens:
            return outcome
        return Damaged(reason=f"it holds {header.tokens_valid} tokens from position {first} on")

    def _judge(self, item: Item, outcome: ReadOutcome) -> None:
        """Takes what is not there, or not right, out of a tier."""
        tier, key = item.tier, item.key
        match outcome:
            case Damaged() if tier.book is not None:
                self._writing.owe(tier, tier.book.quarantine(key))
            case Damaged():
                tier.tally.quarantined += 1
                tier.known.discard(key)
                self._writing.owe(tier, (item.address,))
            case Absent() if tier.book is not None:
                self._writing.owe(tier, tier.book.lose(key))
            case Absent():
                tier.known.discard(key)

    @staticmethod
    def _tally(load: Load, outcome: ReadOutcome) -> None:
        if load.errand is not None:
            match outcome:
                case Found():
                    load.errand.sound += 1
                case Damaged():
                    load.errand.damaged += 1
                case Absent():
                    load.errand.absent += 1

    def _promote(self, load: Load, tier: TierState, copies: Sequence[Copy]) -> None:
        """Writes what came from below to the placed tiers above, or where an errand says, out of staging."""
        if load.errand is not None:
            if load.errand.target is not None:
                self._writing.write(load.errand.target, copies)
            return
        if not copies or load.is_void:
            return
        now_s = self._desk.clock.now_s()
        in_use = [each.name for each in self._desk.tiers if each is tier or each.writable(now_s)]
        nbytes = sum(copy.parcel.staged_bytes for copy in copies)
        for name in self._desk.settings.policies.placement.promotes(tier.name, in_use):
            target = self._desk.by_name[name]
            if target.book is not None and not target.writes_full(nbytes):
                self._writing.write(target, copies)

    # ---- what did not come

    def _miss(self, load: Load, item: Item) -> None:
        """An item did not come from its tier: it is wanted from another one, unless nobody waits any more."""
        self.give_back(load, item)
        if not load.is_given_up and load.errand is None:
            item.tier.tally.load_failures += 1
            self._look_elsewhere(load, item)

    def _look_elsewhere(self, load: Load, item: Item) -> None:
        item.tried = (*item.tried, item.tier)
        if load.failed_index is not None and item.want.index >= load.failed_index:
            return
        now_s, now_unix_s = self._desk.clock.now_s(), self._desk.calendar.now_unix_s()
        for tier in self._desk.tiers:
            usable = tier not in item.tried and tier.readable(now_s) and tier.has(item.key, now_unix_s)
            if usable and self._queue(load, item, tier, now_unix_s):
                return
        load.failed_index = item.want.index
        for behind in load.unwanted(item.want.index):  # no longer prefix can come of these
            self.give_back(load, behind)

    def _unstage(self, load: Load, item: Item) -> None:
        if item.parcel is not None:
            self._desk.parcels.leave(item.parcel, load.ticket)
            item.parcel = None
