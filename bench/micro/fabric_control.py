"""What control's part of a hit and of a store costs the thread that asks: decisions and books, not the moving of bytes.

    python bench/micro/fabric_control.py --json bench/results/fabric-control.json

Two placed tiers, the first one looked at in place, hold one long prompt. Jobs are done between the measurements.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

from rounds import Case, parser_of, run

from kvist.app.clock import SystemCalendar, SystemClock
from kvist.base.errors import KvistError
from kvist.base.ids import BlockHash, GroupId
from kvist.base.units import Tokens
from kvist.blocks.form import Form, Part, Plane
from kvist.blocks.keys import TenantTag, namespace_of
from kvist.cost.prefill import Work, prefill_model
from kvist.fabric.carry import Reach, carry
from kvist.fabric.claims import BookLimits
from kvist.fabric.control import Fabric
from kvist.fabric.jobs import Job, Report
from kvist.fabric.messages import Offer, Query, Room, Ticket, TierName
from kvist.fabric.settings import FabricSettings, TierSettings
from kvist.tiers.memory import MemoryTier
from kvist.tiers.regions import Region, RegionId, Regions
from kvist.tiers.verified import verified

BLOCK_TOKENS = 16
FORM = Form(planes=(Plane("k", "bfloat16", (512,)), Plane("v", "bfloat16", (512,))), part=Part(0, 1, 0, 1))
PLACE_BYTES = 4096
TENANT = TenantTag(bytes(16))
TIERS = (TierName("first"), TierName("second"))


class Later:
    """A carrier that does its jobs when it is told to."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._jobs: list[Job] = []
        self._report: Callable[[Report], None]

    def start(self, report: Callable[[Report], None]) -> None:
        self._report = report

    def submit(self, job: Job) -> bool:
        self._jobs.append(job)
        return True

    def withdraw(self, ticket: Ticket) -> bool:  # noqa: ARG002  every job is done
        return False

    def close(self, timeout_s: float) -> bool:  # noqa: ARG002  nothing runs by itself
        return True

    def work(self) -> None:
        while self._jobs:
            self._report(carry(self._jobs.pop(0), self._reach))


class Prompt:
    """A fabric that holds one prompt, and what is done with it."""

    def __init__(self, blocks: int, stored: int, rounds: int) -> None:
        regions = Regions()
        staging = regions.add(Region(RegionId("staging"), 1024 * PLACE_BYTES))
        size = (blocks + stored * (rounds + 2) + 64) * PLACE_BYTES  # nothing is evicted
        slabs = [regions.add(Region(RegionId(name), size)) for name in TIERS]
        tiers = {name: verified(MemoryTier(name, slab)) for name, slab in zip(TIERS, slabs, strict=True)}
        limits = BookLimits(bytes_max=size, extent_bytes=64 * PLACE_BYTES, alignment=PLACE_BYTES)
        clock = SystemClock()
        self.movers = Later(Reach(tiers=tiers, regions=regions, clock=clock))
        settings = FabricSettings(
            namespace=namespace_of({}),
            block_tokens=BLOCK_TOKENS,
            windows=(None,),
            forms=(FORM,),
            tiers=(
                TierSettings(name=TIERS[0], kind="dram", limits=limits, region=slabs[0].id),
                TierSettings(name=TIERS[1], kind="disk", limits=limits),
            ),
            prefill=prefill_model(Work(parameters=10**9, attention_width=4096), step_tokens=Tokens(512)),
            staging=staging.id,
            staging_bytes=staging.size,
        )
        self.fabric = Fabric(settings, self.movers, clock, SystemCalendar())
        self.chain = [BlockHash(index.to_bytes(32, "little")) for index in range(blocks)]
        self.stored, self.new, self.ticket = stored, blocks, Ticket(0)
        for first in range(0, blocks, 64):
            self.store(self.chain[first : first + 64])
            self.movers.work()

    def store(self, hashes: Sequence[BlockHash]) -> None:
        rooms = [
            self.fabric.offer(Offer(tenant=TENANT, group=GroupId(0), hash=each, index=int.from_bytes(each, "little")))
            for each in hashes
        ]
        self.fabric.store([room for room in rooms if isinstance(room, Room)])

    def store_new(self) -> None:
        self.store([BlockHash(index.to_bytes(32, "little")) for index in range(self.new, self.new + self.stored)])

    def prepare_new(self) -> None:
        self.movers.work()
        self.new += self.stored

    def begin(self, blocks: int) -> None:
        chain = self.chain[:blocks]
        self.ticket = self.fabric.begin(Query(tenant=TENANT, chain=chain, tokens=Tokens(blocks * BLOCK_TOKENS + 1)))

    def ask_for_copies(self) -> None:
        for block_hash in self.chain:
            assert self.fabric.has_copy(GroupId(0), block_hash)

    def plan(self) -> None:
        self.fabric.plan(self.ticket, [[]])

    def load(self, blocks: int) -> None:
        self.begin(blocks)
        self.fabric.load(self.ticket, self.fabric.plan(self.ticket, [[]]))

    def land(self) -> None:
        self.fabric.taken(self.ticket, self.fabric.landed(self.ticket))
        assert self.fabric.state(self.ticket) == "complete", "the load came too late; let nothing else run meanwhile"
        self.fabric.drop(self.ticket)

    def drop(self) -> None:
        self.movers.work()  # at once: a load that is kept waiting is late, and speaks against its tier
        self.fabric.drop(self.ticket)


def cases(args: argparse.Namespace) -> list[Case]:
    blocks, hit, stored = args.blocks, args.hit, min(args.hit, 64)
    prompt = Prompt(blocks, stored, args.rounds)

    def loaded() -> None:
        prompt.drop()
        prompt.load(hit)
        prompt.movers.work()

    def begun() -> None:
        prompt.drop()
        prompt.begin(blocks)

    return [
        Case(
            name="begin and plan",
            unit="blocks",
            units=blocks,
            run=lambda: (prompt.begin(blocks), prompt.plan()),
            prepare=prompt.drop,
        ),
        Case(name="ask whether there is a copy", unit="blocks", units=blocks, run=prompt.ask_for_copies),
        Case(name="plan once more", unit="blocks", units=blocks, run=prompt.plan, prepare=begun),
        Case(name="begin, plan and load", unit="blocks", units=hit, run=lambda: prompt.load(hit), prepare=prompt.drop),
        Case(name="land, take and drop", unit="blocks", units=hit, run=prompt.land, prepare=loaded),
        Case(name="offer and store", unit="blocks", units=stored, run=prompt.store_new, prepare=prompt.prepare_new),
    ]


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--blocks", type=int, default=8192, help="length of the prompt (%(default)s)")
    parser.add_argument("--hit", type=int, default=256, help="blocks of a hit that is loaded (%(default)s)")
    run("fabric_control", argv, parser, cases)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KvistError as error:
        sys.exit(f"fabric_control: {error}")
