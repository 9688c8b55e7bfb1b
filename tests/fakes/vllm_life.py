"""A naive vLLM, the scheduler's side and a real fabric on virtual time, from a seed: who comes and goes, and when."""

from collections.abc import Callable
from itertools import count

from fakes.dice import Dice
from fakes.fabric import Rig
from fakes.fabric_life import Takes, TimedMovers, well
from fakes.vllm_scheduler import Engine
from fakes.vllm_shape import Request, Shape
from fakes.vllm_workers import CELL, Manners, Workers
from kvist.base.units import Tokens
from kvist.blocks.keys import Namespace
from kvist.blocks.window import Retention
from kvist.connectors.vllm.identities import Tenants
from kvist.connectors.vllm.requests import AdapterName
from kvist.connectors.vllm.scheduler import SchedulerSide
from kvist.connectors.vllm.settings import Ports, SchedulerSettings
from kvist.connectors.vllm.shapes import EngineGroup, RecordShape
from kvist.fabric.carry import Reach
from kvist.tiers.ports import Tier

SHAPES = {
    "full": Shape(),
    "full, small hashes": Shape(hash_tokens=8, groups=((32, None),)),
    "full, two workers": Shape(workers=2),
    "hybrid": Shape(groups=((16, None), (16, 40)), pool_blocks=96),
    "hybrid, blocks of two sizes, two workers": Shape(groups=((32, None), (16, 24)), workers=2, pool_blocks=96),
    "windows alone": Shape(groups=((16, 24), (16, 64)), pool_blocks=80),
}
"""By what is special about them."""

ADAPTERS = [
    None,
    AdapterName(name="sql", path="/a"),
    AdapterName(name="sql", path="/b"),
    AdapterName(name="x", path="/"),
]
"""The last one cannot be told from others."""


def digest_of(adapter: AdapterName) -> bytes | None:
    """Stands for an adapter's files."""
    return None if adapter.name == "x" else adapter.path.encode() * 8


class VllmLife:
    """One engine, from its start to its end."""

    def __init__(
        self,
        seed: int,
        shape: Shape,
        *,
        takes: Takes = well,
        manners: Manners | None = None,
        wrap: Callable[[Tier], Tier] = lambda tier: tier,
        names: tuple[str, ...] = ("dram", "disk", "pool"),
        staging_records: int = 24,
        tier_records: int = 120,
        **settings: object,
    ) -> None:
        self.dice = Dice(seed)
        self.shape = shape
        movers: list[TimedMovers] = []

        def make(reach: Reach) -> TimedMovers:
            movers.append(TimedMovers(reach, self.dice, takes))
            return movers[0]

        per_record = [shape.block_tokens // size for size, _ in shape.groups]
        payloads = [blocks * shape.workers * CELL for blocks in per_record]
        self.rig = Rig(
            payloads=payloads,
            windows=[window for _, window in shape.groups],
            names=names,
            wrap=wrap,
            staging_records=staging_records,
            tier_records=tier_records,
            make_movers=make,
            settings={"block_tokens": shape.block_tokens, "piece_records": 4},
        )
        self.movers = movers[0]
        forms = self.rig.fabric._desk.settings.forms
        described = SchedulerSettings(
            groups=tuple(
                EngineGroup(index=index, layers=(f"layer {index}",), block_tokens=Tokens(size), window=window)
                for index, (size, window) in enumerate(shape.groups)
            ),
            shapes=tuple(
                RecordShape(form=form, engine_blocks=blocks, shares={})
                for form, blocks in zip(forms, per_record, strict=True)
            ),
            hash_tokens=Tokens(shape.hash_tokens),
            block_tokens=Tokens(shape.block_tokens),
            retention=Retention(checkpoint_tokens=Tokens(128), slack_tokens=Tokens(32)),
            workers=shape.workers,
            pool_blocks=shape.pool_blocks,
            idle_wait_s=0.0,
            **settings,
        )
        ports = Ports(
            clock=self.rig.clock,
            tenants=Tenants(b"secret"),
            scheme=b"naive",
            adapter_digest=digest_of,
            is_clean=lambda: self.engine.is_clean,
        )
        self.side = SchedulerSide(self.rig.fabric, described, ports)
        self.workers = Workers(shape.workers, len(shape.groups), self.rig.regions.view, self.dice, manners or Manners())
        self.engine = Engine(self.side, self.workers, shape, self.dice)
        self._names = count()
        self.aborts = 40
        self.resets = 0
        self.waited_s_max = 0.0

    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self.rig.clock.now_s()

    def run(self, steps: int) -> None:
        """So many steps, with whatever clients do meanwhile."""
        for _ in range(steps):
            if len(self.engine.requests) < 8 and self.dice.number(1, 3) == 1:
                self._arrive()
            live = [each for each in self.engine.requests.values() if each.status != "finished"]
            if live and self.aborts and self.dice.number(1, self.aborts) == 1:
                self.engine.abort(self.dice.pick(live))
            if self.resets and self.dice.number(1, self.resets) == 1:
                self.reset()
            self.step()

    def reset(self) -> None:
        """The weights are replaced."""
        self.engine.reset()
        self.side.reset(Namespace(self.engine.era.to_bytes(32, "little")))

    def step(self) -> None:
        """One step, and the time that it takes; then everything must add up."""
        computed = self.engine.step(self.now_s)
        self.pass_time(0.001 + computed * 0.001)
        self.check()

    def check(self) -> None:
        """What must hold between steps."""
        self.side.audit()
        tickets = {*self.side._asks.tickets.values(), *self.side._loads.tickets}
        assert set(self.rig.fabric._asked) == tickets, "a ticket is nobody's, or was dropped"
        for request in self.engine.requests.values():
            if request.status == "parked":
                waited_s = self.now_s - request.parked_s
                self.waited_s_max = max(self.waited_s_max, waited_s)
                assert waited_s < 5.0, f"{request.id} is parked for {waited_s} s"

    def pass_time(self, seconds: float) -> None:
        """Time goes by, and jobs end."""
        until_s = self.now_s + seconds
        while self.movers.next_s() <= until_s:
            self._set(self.movers.next_s())
            self.movers.end_next()
        self._set(until_s)

    def end(self) -> None:
        """Nobody comes any more, everything heals, and nothing may be left."""
        self.workers.manners = Manners()
        self.movers.takes = well
        self.movers.heal()
        for _ in range(3000):
            if not self.engine.requests and self.workers.is_idle:
                break
            self.step()
        assert not self.engine.requests, f"these never end: {self.engine.requests}"
        self.pass_time(100.0)
        self.step()
        self.pass_time(1.0)
        assert self.engine.pool.free == self.shape.pool_blocks - 1, "blocks are missing"
        statistics = self.side.statistics()
        left = (statistics.requests, statistics.loads_running, statistics.stores_running, statistics.held)
        assert left == (0, 0, 0, 0), statistics
        assert (statistics.orders, statistics.fabric.staging_bytes_used) == (0, 0), statistics
        self.side.close()
        self.rig.close()

    def _set(self, now_s: float) -> None:
        seconds = max(0.0, now_s - self.now_s)
        self.rig.clock.advance(seconds)
        self.rig.calendar.time_unix_s += seconds

    def _arrive(self) -> None:
        """A question about a document that was perhaps asked about before."""
        document = self.dice.number(1, 5)
        prompt = [document * 1000 + place for place in range(self.dice.number(1, 200))]
        prompt += [self.dice.number(0, 9999) for _ in range(self.dice.number(0, 40))]
        self.engine.add(
            Request(
                id=f"request {next(self._names)}",
                tokens=prompt or [0],
                prompt=len(prompt),
                until=len(prompt) + self.dice.number(1, 30),
                salt=self.dice.pick([None, None, None, "blue"]),
                adapter=self.dice.pick([None, None, None, *ADAPTERS]),
                reads_cache=self.dice.number(1, 8) > 1,
            )
        )
