"""A fabric over small tiers, with movers that do one job at a time when they are told to."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fakes.clock import HandClock
from fakes.tiers import DictTier
from kvist.base.ids import BlockHash, GroupId
from kvist.base.units import Tokens
from kvist.blocks.form import Form, Part, Plane
from kvist.blocks.keys import Namespace, TenantTag
from kvist.cost.prefill import Work, prefill_model
from kvist.fabric.carry import Reach, carry
from kvist.fabric.claims import BookLimits
from kvist.fabric.control import Fabric
from kvist.fabric.jobs import Job, Lane, Report, Skipped, StampJob, lane_of
from kvist.fabric.messages import Landed, Offer, Plan, Query, Room, Ticket, TierBooks, TierName
from kvist.fabric.policies import TimeToLive
from kvist.fabric.settings import FabricSettings, Policies, TierSettings
from kvist.tiers.faulty import Fail, Fault
from kvist.tiers.faulty import Plan as FaultPlan
from kvist.tiers.memory import MemoryTier
from kvist.tiers.ports import Tier, Verb
from kvist.tiers.regions import Region, RegionId, Regions
from kvist.tiers.verified import verified

BLUE = TenantTag(b"blue tenant 0001")
RED = TenantTag(b"red tenant 00002")
NAMESPACE = Namespace(b"n" * 32)
BLOCK_TOKENS = 16
STAGING = RegionId("staging")


class HandCalendar:
    """A wall clock that its owner sets."""

    def __init__(self, now_unix_s: float = 1_000_000.0) -> None:
        self.time_unix_s = now_unix_s

    def now_unix_s(self) -> float:
        """The time it was set to."""
        return self.time_unix_s


class HandMovers:
    """A carrier whose jobs are done when the test says so, one at a time, in any order that the lanes allow."""

    def __init__(self, reach: Reach, queue_jobs: int = 64) -> None:
        self._reach = reach
        self._queue_jobs = queue_jobs
        self._jobs: dict[tuple[str, Lane], list[Job]] = {}
        self._begun: set[Ticket] = set()
        self._report: Callable[[Report], None] | None = None
        self._is_closed = False

    def start(self, report: Callable[[Report], None]) -> None:
        self._report = report

    def submit(self, job: Job) -> bool:
        queue = self._jobs.setdefault(self._lane(job), [])
        if self._is_closed or len(queue) >= self._queue_jobs:
            return False
        queue.append(job)
        return True

    def withdraw(self, ticket: Ticket) -> bool:
        for queue in self._jobs.values():
            for job in queue:
                if job.ticket == ticket and ticket not in self._begun:
                    queue.remove(job)
                    return True
        return False

    def close(self, timeout_s: float) -> bool:
        self._is_closed = True
        for queue in self._jobs.values():
            for job in [each for each in queue if each.ticket not in self._begun]:
                queue.remove(job)
                self._tell(Skipped(ticket=job.ticket))
        return not self._begun

    @property
    def waiting(self) -> list[Job]:
        """Jobs that could be done now: the first of each lane that changes a tier, any of the others."""
        lanes = self._jobs.items()
        return [job for (_, lane), queue in lanes for job in (queue[:1] if lane == "change" else queue)]

    def begin(self, job: Job) -> None:
        """From now on the job can no longer be taken back."""
        self._begun.add(job.ticket)

    def do(self, job: Job) -> None:
        """Does one job and reports it."""
        self._jobs[self._lane(job)].remove(job)
        self._begun.discard(job.ticket)
        self._tell(carry(job, self._reach))

    def do_all(self) -> None:
        """Does whatever waits, and what comes of it, until nothing does."""
        while self.waiting:
            self.do(self.waiting[0])

    def _lane(self, job: Job) -> tuple[str, Lane]:
        return ("stamp", "read") if isinstance(job, StampJob) else (job.tier, lane_of(job))

    def _tell(self, report: Report) -> None:
        assert self._report is not None
        self._report(report)


def form_of(payload_bytes: int) -> Form:
    """Of records whose payloads are so long."""
    half = payload_bytes // 4
    planes = (Plane("k", "bfloat16", (half,)), Plane("v", "bfloat16", (half,)))
    return Form(planes=planes, part=Part(0, 2, 0, 1))


def chain_of(name: str, blocks: int) -> list[BlockHash]:
    """Hashes of a sequence called `name`; hashes of one group and sequence are all different."""
    return [BlockHash(f"{name}:{index}".encode().ljust(32, b".")) for index in range(blocks)]


def payload_of(block_hash: BlockHash, group: int, size: int, era: int = 0) -> bytes:
    """What a block holds, from which it and the namespace that it was computed in can be told."""
    return (block_hash + bytes([group, ord("*") + era])).ljust(64, b"*")[:size].ljust(size, b"+")


def but_no_lies_in_place(plan: FaultPlan) -> FaultPlan:
    """A plan without damage to records while they are lent.

    Those are damaged where they lie, also under the eyes of a load that has proven them and not copied them yet;
    against memory that changes by itself nobody is safe.
    """

    def faults(verb: Verb, number: int) -> Fault | None:
        fault = plan(verb, number)
        return fault if verb != "lend" or isinstance(fault, Fail) else None

    return faults


@dataclass(kw_only=True)
class Rig:
    """A fabric over dram (looked at in place), disk (placed, read into staging) and pool (keyed).

    `disk` is host memory here, because what counts is that it has books and does not lend.
    """

    staging_records: int = 16
    tier_records: int = 64
    payloads: Sequence[int] = (1024,)
    windows: Sequence[int | None] = (None,)
    names: Sequence[str] = ("dram", "disk", "pool")
    wrap: Callable[[Tier], Tier] = lambda tier: tier
    ttl_s: float | None = None
    settings: dict[str, object] = field(default_factory=dict)
    make_movers: Callable[[Reach], HandMovers] = HandMovers  # or Movers, for threads
    clock: HandClock = field(default_factory=HandClock)
    calendar: HandCalendar = field(default_factory=HandCalendar)
    limits: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.era = 0
        self.regions = Regions()
        forms = tuple(form_of(size) for size in self.payloads)
        longest = max(-(-form.record_bytes // 4096) * 4096 for form in forms)
        self.staging = self.regions.add(Region(STAGING, longest * self.staging_records))
        tiers, described = {}, []
        for name in self.names:
            tier, settings = self._tier(name, longest)
            tiers[TierName(name)] = verified(self.wrap(tier))
            described.append(settings)
        self.tiers = tiers
        self.movers = self.make_movers(Reach(tiers=tiers, regions=self.regions, clock=self.clock))
        settings = FabricSettings(
            namespace=NAMESPACE,
            block_tokens=BLOCK_TOKENS,
            windows=tuple(None if each is None else Tokens(each) for each in self.windows),
            forms=forms,
            tiers=tuple(described),
            prefill=prefill_model(Work(parameters=10**9, attention_width=4096), step_tokens=Tokens(512)),
            staging=STAGING,
            staging_bytes=self.staging.size,
            policies=Policies(retention=TimeToLive(ttl_s=self.ttl_s)),
        )
        self.fabric = Fabric(replace(settings, **self.settings), self.movers, self.clock, self.calendar)

    def _tier(self, name: str, longest: int) -> tuple[Tier, TierSettings]:
        if name == "pool":
            return DictTier(name), TierSettings(name=TierName(name), kind="pool")
        size = self.limits.get(name, longest * self.tier_records)
        region = self.regions.add(Region(RegionId(name), size))
        limits = BookLimits(bytes_max=size, extent_bytes=longest * 4, alignment=64)
        tier: Tier = MemoryTier(name, region) if name == "dram" else Unlent(MemoryTier(name, region))
        shown = region.id if name == "dram" else None
        return tier, TierSettings(
            name=TierName(name), kind="dram" if name == "dram" else "disk", limits=limits, region=shown
        )

    def store(
        self, chain: Sequence[BlockHash], *, tenant: TenantTag = BLUE, groups: Sequence[int] = (0,), first: int = 0
    ) -> list[Room]:
        """Offers every block as an engine does, and stores those that there is room for; returns their rooms.

        The chain begins at the sequence's block `first`.
        """
        rooms = []
        for group, (index, block_hash) in itertools.product(groups, enumerate(chain, first)):
            offer = Offer(tenant=tenant, group=GroupId(group), hash=block_hash, index=index)
            answer = self.fabric.offer(offer)
            if isinstance(answer, Room):
                self.write(answer, block_hash, group)
                rooms.append(answer)
        self.fabric.store(rooms)
        return rooms

    def fill(self, chain: Sequence[BlockHash], *, tenant: TenantTag = BLUE, groups: Sequence[int] = (0,)) -> None:
        """Stores every block, and waits for it."""
        for index, block_hash in enumerate(chain):
            for group in groups:
                offer = Offer(tenant=tenant, group=GroupId(group), hash=block_hash, index=index)
                room = self.fabric.offer(offer)
                assert isinstance(room, Room), room
                self.write(room, block_hash, group)
                self.fabric.store([room])
                self.movers.do_all()

    def write(self, room: Room, block_hash: BlockHash, group: int = 0) -> None:
        """Copies a block's payload to where it may be."""
        view = self.regions.view(room.buffer)
        view[:] = payload_of(block_hash, group, view.nbytes, self.era)

    def renew(self) -> None:
        """The weights have changed: the same tokens give other KV, under another namespace."""
        self.era += 1
        self.fabric.renew(Namespace(self.era.to_bytes(32)))

    def ask(self, chain: Sequence[BlockHash], *, tenant: TenantTag = BLUE, tokens: int | None = None) -> Ticket:
        """Begins a query that would hit every block."""
        length = Tokens(len(chain) * BLOCK_TOKENS + 1 if tokens is None else tokens)
        return self.fabric.begin(Query(tenant=tenant, chain=chain, tokens=length))

    def plan(self, ticket: Ticket, resident: Sequence[Sequence[bool]] | None = None) -> Plan:
        """Plans it for an engine that holds nothing, unless told otherwise."""
        return self.fabric.plan(ticket, [[] for _ in self.payloads] if resident is None else resident)

    def take(self, ticket: Ticket, chain: Sequence[BlockHash]) -> list[Landed]:
        """Takes what has landed, and proves that each piece is what it says."""
        pieces = list(self.fabric.landed(ticket))
        self.check(pieces, chain)
        self.fabric.taken(ticket, pieces)
        return pieces

    def check(self, pieces: Sequence[Landed], chain: Sequence[BlockHash], era: int | None = None) -> None:
        """Proves that each piece is what it says, in the namespace of now or in an earlier one."""
        in_era = self.era if era is None else era
        for piece in pieces:
            expected = payload_of(chain[piece.want.index], piece.want.group, piece.buffer.length, in_era)
            assert bytes(self.regions.view(piece.buffer)) == expected, f"{piece.want} holds something else"

    def settle(self) -> None:
        """Waits for the threads of real movers to have written everything."""
        for _ in range(1000):
            if not self.fabric.statistics().stores_running:
                return
            self.fabric.wait(1.0)
        raise AssertionError(f"stores do not end: {self.fabric.statistics()}")

    def books(self, name: str) -> TierBooks:
        """The ledger of one tier."""
        return next(books for books in self.fabric.statistics().tiers if books.name == name)

    def close(self) -> None:
        """Ends it; whatever is left must belong to nobody."""
        self.fabric.close(0.0)
        self.regions.close()


class Unlent:
    """A tier that shows nothing in place."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        for verb in ("find", "read", "write", "delete", "keep", "entries", "statistics", "close"):
            setattr(self, verb, getattr(tier, verb))

    @property
    def name(self) -> str:
        return self._tier.name
