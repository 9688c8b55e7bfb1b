"""The scheduler's side: what vLLM's scheduler asks, told by the fabric, and what the workers are to copy.

    arrived ─▶ (matched)* ─▶ allocated ─▶ (step ─▶ reported)* ─▶ finished        of each request, in vLLM's own thread

Every verb is cheap, and none waits but `step`, for two milliseconds at most, when the engine has nothing to compute and
would ask again and again.

Laws:
    * A request that vLLM parks for a load is told its end exactly once (`loads`).
    * A buffer that stands in an order belongs to the order until every worker has acknowledged it (`outstanding`).
    * Blocks of a finished request are held only while they are named nowhere as freed, and then named once (`holds`).
"""

from collections import Counter
from collections.abc import Collection, Mapping

from kvist.blocks.keys import Namespace
from kvist.connectors.vllm.asks import Asks
from kvist.connectors.vllm.counts import COMPUTED, LOCAL, SchedulerStatistics, Tally, apportioned
from kvist.connectors.vllm.holds import Holds
from kvist.connectors.vllm.lives import Life, Lives
from kvist.connectors.vllm.loads import Loads
from kvist.connectors.vllm.orders import StepOrders, StepReport
from kvist.connectors.vllm.outstanding import Outstanding
from kvist.connectors.vllm.parked import Load, Piece, Tables
from kvist.connectors.vllm.requests import EngineRequest, StepView
from kvist.connectors.vllm.settings import Ports, SchedulerSettings
from kvist.connectors.vllm.stores import Round, Stores
from kvist.connectors.vllm.timing import StepTimes
from kvist.fabric.control import Fabric
from kvist.fabric.messages import Plan, Room

_STORE_SHARE = 4
"""Of what may be copied beside a step, stores always get one in so many bytes."""


class SchedulerSide:
    """One per vLLM engine; one thread."""

    def __init__(self, fabric: Fabric, settings: SchedulerSettings, ports: Ports) -> None:
        """Decides with a fabric that is open, and has as many groups as the settings."""
        self._fabric = fabric
        self._settings = settings
        self._ports = ports
        self._lives = Lives(settings, ports)
        self._outstanding: Outstanding[Piece | Room] = Outstanding(settings.workers)
        self._asks = Asks(fabric, ports.clock, block_tokens=settings.block_tokens, groups=len(settings.groups))
        self._loads = Loads(fabric, settings, ports.clock, self._outstanding)
        self._stores = Stores(fabric, settings, self._outstanding)
        self._holds = Holds(self._stores, settings, ports.clock)
        self._times = StepTimes(overlap=settings.steps_overlap)
        self._tally = Tally()
        self._is_known = False
        self._turned_away: str | None = None

    # ---- how a request begins

    def arrived(self, request: EngineRequest) -> None:
        """A request waits from now on: begins to find out what the tiers have of it."""
        life = self._lives.of(request)
        if life.may_load and self._blocks_wanted(request):
            self._asks.begin(life, request)

    def matched(self, request: EngineRequest, computed: int) -> tuple[int | None, bool]:
        """How many tokens to load behind those that vLLM has, and whether that takes steps.

        A request that has no blocks is asked about as often as it might begin; the answers agree until something
        changes.

        Args:
            request: which.
            computed: tokens that vLLM has, a whole number of its blocks.

        Returns:
            Tokens, None while that is not known; and True if there are any.
        """
        life = self._lives.of(request)
        if life.began:
            self._begin_again(life)
        life.is_stale = computed > 0 and not self._ports.is_clean()
        self._turned_away = request.id  # unless it is given blocks now
        size = self._settings.block_tokens
        if not life.may_load or computed % size or computed // size >= self._blocks_wanted(request):
            return 0, False
        claim = self._asks.claim(life, request, computed)
        if claim is None:
            self._turned_away = None
            return None, False
        return claim.tokens, claim.tokens > 0

    def allocated(self, request: EngineRequest, blocks: Tables, external: int) -> None:
        """A request was given blocks: begins the load, if some of them are for tokens to be loaded.

        Args:
            request: which.
            blocks: its block ids, by vLLM's group index.
            external: tokens to be loaded behind those that vLLM has.
        """
        life = self._lives.of(request)
        life.began = True
        self._turned_away = None
        if external <= 0:
            self._asks.drop(request.id)
            return
        taken = self._asks.take(request.id)
        assert taken is not None, f"{request.id} was given blocks for {external} tokens that nobody claimed"
        ticket, claim = taken
        # Of a shorter hit, windows would need other blocks than those that were planned.
        assert external == claim.tokens, f"{request.id} takes {external} of the {claim.tokens} tokens that were claimed"
        life.local = claim.computed
        life.planned = _sources(claim.plan)
        self._loads.begin(Load(request.id, life, ticket, claim), blocks, external)

    def sources(self, request_id: str, external: int) -> Mapping[str, int]:
        """So many tokens to be loaded, by the tier that they come from."""
        life = self._lives.get(request_id)
        return {} if life is None else apportioned(life.planned, external)

    # ---- steps

    def step(self, view: StepView) -> StepOrders:
        """What the workers do with a step that vLLM has just planned."""
        for request_id in view.preempted:
            self._preempted(request_id, view)
        for request_id in view.scheduled:
            self._scheduled(request_id, view)
        self._time(view)
        if self._turned_away is not None:
            self._holds.give_way()
        self._turned_away = None
        orders = self._orders(view)
        if orders.is_empty and not view.scheduled and self._is_waiting():
            self._fabric.wait(self._settings.idle_wait_s)
            orders = self._orders(view)
        return orders

    def reported(self, report: StepReport | None, finished: Collection[str]) -> None:
        """A step has ended.

        Args:
            report: what became of orders; None: nothing did.
            finished: requests whose loads' ends vLLM is told with it.
        """
        learned = self._times.reported(self._ports.clock.now_s(), 0.0 if report is None else report.copy_s)
        if learned is not None:
            self._fabric.learn_prefill(learned.start, learned.end, learned.seconds)
        self._loads.told(finished)
        if report is None:
            return
        self._is_known = True
        self._tally.copy_s += report.copy_s
        self._tally.copied_bytes += report.copied_bytes
        over = self._outstanding.acknowledge(report)
        self._loads.acknowledged([(owner, sound) for owner, sound in over if isinstance(owner, Piece)])
        self._stores.acknowledged([(owner, sound) for owner, sound in over if isinstance(owner, Room)])

    def finished(self, request: EngineRequest, blocks: Tables) -> bool:
        """A request has ended, in whatever state; whether its blocks must stay until it is named as freed.

        Args:
            request: which.
            blocks: its block ids, by vLLM's group index.
        """
        life = self._lives.end(request.id)
        self._asks.drop(request.id)
        if self._loads.leave(request.id) or life is None:
            return False  # vLLM keeps a parked request's blocks anyway, until it is told the end of its load
        return self._holds.keep(life, request, blocks)

    def relieve(self) -> bool:
        """A running request finds no blocks; whether some that are held will be free with the next step's end.

        Of one that waits nobody says so; it is asked about, and then not given any.
        """
        return self._holds.give_way()

    def reset(self, namespace: Namespace) -> None:
        """Nothing of before may be found or stored any more, nor what is computed from it.

        Args:
            namespace: of what is computed from now on; one that never was.
        """
        self._fabric.renew(namespace)
        self._asks.drop_all()
        self._loads.void()
        for life in (*self._lives, *self._holds.lives()):
            life.is_stale = life.began

    # ---- looking, and the end

    def statistics(self) -> SchedulerStatistics:
        """A frozen snapshot."""
        return SchedulerStatistics(
            requests=len(self._lives),
            bypassed=self._lives.bypassed,
            tokens=dict(self._tally.tokens),
            loads=dict(self._loads.outcomes),
            loads_running=self._loads.running,
            stores=dict(self._stores.fates),
            stores_running=sum(isinstance(owner, Room) for owner in self._outstanding.owners),
            held=len(self._holds),
            orders=len(self._outstanding),
            copy_s=self._tally.copy_s,
            copied_bytes=self._tally.copied_bytes,
            fabric=self._fabric.statistics(),
        )

    def audit(self) -> None:
        """Proves that whatever is held has an owner that is alive.

        Raises:
            AssertionError: naming what does not add up.
        """
        self._loads.audit(self._outstanding.owners)
        rooms = [owner.ticket for owner in self._outstanding.owners if isinstance(owner, Room)]
        assert len(rooms) == len(set(rooms)), f"a room is in two orders: {rooms}"
        asked = self._asks.tickets
        strangers = [request_id for request_id in asked if self._lives.get(request_id) is None]
        assert not strangers, f"{strangers} were asked about and are gone"
        tickets = [*asked.values(), *self._loads.tickets]
        assert len(tickets) == len(set(tickets)), f"a ticket has two owners: {tickets}"
        assert self._holds.blocks <= self._holds.blocks_max, f"{self._holds.blocks} blocks are held"
        self._fabric.audit()

    def close(self) -> None:
        """The engine ends: nothing is waited for any more, and what was not copied is not stored."""
        self._asks.drop_all()
        self._loads.close()
        for owner in self._outstanding.owners:
            if isinstance(owner, Room):
                self._fabric.withdraw(owner)

    # ---- inside a step

    def _blocks_wanted(self, request: EngineRequest) -> int:
        """Full blocks before the last token, which is always computed."""
        return (request.tokens - 1) // self._settings.block_tokens

    def _preempted(self, request_id: str, view: StepView) -> None:
        """A request has lost its blocks; it may have begun again since, if that was between two steps."""
        life, request = self._lives.get(request_id), view.requests(request_id)
        if life is None or request is None:
            return
        if request_id not in view.scheduled and not self._loads.is_loading(request_id):
            self._begin_again(life)
        life.restore_loading(reads_cache=request.reads_cache)

    def _begin_again(self, life: Life) -> None:
        self._stores.forget(life)
        life.begin_again()

    def _scheduled(self, request_id: str, view: StepView) -> None:
        """A request computes: whatever it began with is known by now, and counted once."""
        life = self._lives.get(request_id)
        request = view.requests(request_id) if life is None or not life.is_counted else None
        if request is None:
            return
        life = self._lives.of(request)
        life.began = life.is_counted = True
        self._count(life, request)

    def _count(self, life: Life, request: EngineRequest) -> None:
        began = min(request.computed_tokens, request.tokens)
        loaded = apportioned(life.planned, began - life.local) if life.planned else {}
        self._tally.tokens.update(loaded)
        self._tally.tokens[LOCAL] += began - sum(loaded.values())
        self._tally.tokens[COMPUTED] += request.tokens - began

    def _time(self, view: StepView) -> None:
        """Remembers when a step that computes one request began."""
        tokens = None
        if len(view.scheduled) == 1:
            ((request_id, count),) = view.scheduled.items()
            request = view.requests(request_id) if count > 1 else None
            tokens = None if request is None else (request.computed_tokens, request.computed_tokens + count)
        self._times.planned(tokens, self._ports.clock.now_s())

    def _orders(self, view: StepView) -> StepOrders:
        bytes_max = self._settings.copy_bytes_max if view.scheduled else None
        loads, ends, copied = self._loads.step(bytes_max)
        turn = Round(None if bytes_max is None else max(bytes_max - copied, bytes_max // _STORE_SHARE))
        freed = tuple(self._holds.step(turn))
        self._stores.step(view, self._lives, turn)
        return StepOrders(
            regions=() if self._is_known else self._ports.handles,
            shapes=() if self._is_known else self._settings.shapes,
            stores=tuple(turn.orders),
            loads=tuple(loads),
            ends=tuple(ends),
            freed=freed,
        )

    def _is_waiting(self) -> bool:
        """Whether something may come that the next step could use, and no report that is on its way."""
        if self._outstanding.owners:
            return False
        return bool(self._loads.running or self._asks.is_waiting or len(self._holds))


def _sources(plan: Plan) -> tuple[tuple[str, int], ...]:
    """Tokens by tier; where the engine's own count for all (windows alone), blocks by tier."""
    tokens = [(each.tier, int(each.tokens)) for each in plan.decision.chosen.sources if each.tier != LOCAL]
    return tuple(tokens) if any(count for _, count in tokens) else tuple(Counter(w.tier for w in plan.wants).items())
