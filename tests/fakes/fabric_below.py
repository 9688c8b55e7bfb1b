"""The real fabric below an engine's trial: its movers do a few jobs per step, in any order, over tiers with faults."""

from collections import Counter

from fakes.below import Manners
from fakes.dice import Dice
from fakes.fabric import Rig
from fakes.shape import Shape
from kvist.base.errors import TierUnavailableError
from kvist.cost.choice import choose, choose_longest
from kvist.engine.below import Tiers
from kvist.fabric.messages import Ticket
from kvist.fabric.settings import Policies
from kvist.tiers.faulty import Fail, Flip, Impostor, Resize, Torn, faulty, seeded
from kvist.tiers.ports import Tier
from kvist.tiers.regions import Buffer

FAULTS = (
    Fail(error=TierUnavailableError),
    Fail(error=TierUnavailableError, after=True),
    Flip(bit=4099),
    Flip(bit=77),
    Resize(by=-1),
    Torn(bytes_kept=600),
    Impostor(),
)


class FabricTiers:
    """Dram, disk and pool, each call of which may fail as the seed says.

    Attributes:
        tiers: the fabric.
        clock: of the fabric and the engine.
        events: what was counted, from one reading to the next.
    """

    manners = Manners(answer_s=50, patience_s=400)
    """How many ticks an answer and a load may take at most."""

    def __init__(self, shape: Shape, seed: int, *, one_in: int | None = None) -> None:
        self._dice = Dice(seed)
        payload = 8 * shape.block_tokens

        def wrap(tier: Tier) -> Tier:
            return tier if one_in is None else faulty(tier, seeded(seed, FAULTS, one_in=one_in))

        self._rig = Rig(
            payloads=(payload,) * len(shape.windows),
            windows=shape.windows,
            names=self._dice.pick([("dram",), ("dram", "disk", "pool"), ("disk", "pool"), ("pool",)]),
            staging_records=self._dice.pick([16, 64]),
            tier_records=self._dice.pick([8, 200]),
            wrap=wrap,
            settings={
                "block_tokens": shape.block_tokens,
                "piece_records": self._dice.number(1, 4),
                "policies": Policies(load_choice=self._dice.pick([choose, choose_longest, choose_longest])),
            },
        )
        self.tiers: Tiers = self._rig.fabric
        self.clock = self._rig.clock
        self.events: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()

    def view(self, buffer: Buffer) -> memoryview:
        """The bytes of a buffer."""
        return self._rig.regions.view(buffer)

    def tick(self) -> None:
        """A little later: a few jobs are done; now and then nothing happens for long."""
        for _ in range(self._dice.number(0, 4)):
            if self._rig.movers.waiting:
                self._rig.movers.do(self._dice.pick(self._rig.movers.waiting))
        self.clock.advance(self._dice.pick([0.001, 0.001, 0.01, 0.1]))

    def check_tickets(self, tickets: set[Ticket]) -> None:
        """Nobody was forgotten, and everything adds up."""
        assert set(self._rig.fabric._asked) == tickets
        self._rig.fabric.audit()

    def check_left(self) -> None:
        """Nothing is left of anybody, once nothing is under way; the ledger of each tier adds up."""
        self._rig.movers.do_all()
        self._rig.fabric.audit()
        statistics = self._rig.fabric.statistics()
        assert (statistics.loads_running, statistics.stores_running, statistics.staging_bytes_used) == (0, 0, 0)
        for books in statistics.tiers:
            gone = books.evicted + books.expired + books.purged + books.quarantined + books.lost
            assert books.stored == books.resident + gone, f"{books} does not add up"
            assert books.queried == books.hit + books.miss, f"{books} does not add up"
        totals = {name: sum(getattr(books, name) for books in statistics.tiers) for name in _COUNTED}
        self.events.update(Counter(totals) - self._counted)
        self._counted = Counter(totals)


_COUNTED = ("stored", "loaded", "load_failures", "late", "quarantined", "evicted")
