"""Requests that have not begun: what the fabric was asked about them, and how much of each was claimed.

    asked ── answered, planned ──▶ claimed ── blocks allocated ──▶ loads (`loads`)
      └── dropped: it begins without, or is gone

vLLM asks at every step at which a request might begin, and a claim may come to nothing for want of blocks. So a claim
holds nothing, and is made anew only when something may have changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvist.base.clock import Clock
from kvist.base.units import Tokens
from kvist.connectors.vllm.lives import Life
from kvist.connectors.vllm.requests import EngineRequest
from kvist.fabric.control import Fabric
from kvist.fabric.messages import Plan, Query, Ticket

_ASKED_MAX = 32
"""Requests that are asked about when they arrive; the others are when it is their turn."""

_FRESH_S = 0.05
"""How long a claim stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """How much of a request is to be loaded.

    Attributes:
        computed: tokens that vLLM has itself.
        tokens: to be loaded behind them; 0: none.
        plan: of the fabric.
        planned_s: when.
    """

    computed: int
    tokens: int
    plan: Plan
    planned_s: float

    def plan_from(self, now_s: float) -> Plan:
        """The plan, with as much time from now on as it had when it was made."""
        return replace(self.plan, deadline_s=now_s + self.plan.deadline_s - self.planned_s)


class _Asked:
    __slots__ = ("claim", "ticket", "tokens")

    def __init__(self, ticket: Ticket, tokens: int) -> None:
        self.ticket = ticket
        self.tokens = tokens
        self.claim: Claim | None = None


class Asks:
    """All requests that were asked about and have not begun."""

    def __init__(self, fabric: Fabric, clock: Clock, *, block_tokens: int, groups: int) -> None:
        """Asks a fabric of so many groups."""
        self._fabric = fabric
        self._clock = clock
        self._block_tokens = block_tokens
        self._groups = groups
        self._asked: dict[str, _Asked] = {}
        self._unanswered: set[str] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether a request cannot begin before an answer has come."""
        return bool(self._unanswered)

    @property
    def tickets(self) -> Mapping[str, Ticket]:
        """Who was asked about, under which ticket."""
        return {request_id: asked.ticket for request_id, asked in self._asked.items()}

    def begin(self, life: Life, request: EngineRequest) -> None:
        """Asks about a request that has just arrived, unless many were already."""
        if len(self._asked) < _ASKED_MAX:
            self._ask(life, request)

    def claim(self, life: Life, request: EngineRequest, computed: int) -> Claim | None:
        """How much of a request is to be loaded behind what vLLM has; None while that is not known.

        Args:
            life: of the request.
            request: which.
            computed: tokens that vLLM has, a whole number of blocks.
        """
        asked = self._ask(life, request)
        now_s = self._clock.now_s()
        claim = asked.claim
        if claim is not None and claim.computed == computed and now_s - claim.planned_s <= _FRESH_S:
            return claim
        if not self._fabric.is_answered(asked.ticket):
            self._unanswered.add(request.id)
            return None
        self._unanswered.discard(request.id)
        resident = [True] * (computed // self._block_tokens)
        plan = self._fabric.plan(asked.ticket, [resident] * self._groups)
        tokens = max(0, plan.tokens - computed) if plan.wants else 0
        asked.claim = Claim(computed=computed, tokens=tokens, plan=plan, planned_s=now_s)
        return asked.claim

    def take(self, request_id: str) -> tuple[Ticket, Claim] | None:
        """What was claimed for a request that begins now; from here on the ticket is the caller's. None: nothing."""
        asked = self._asked.get(request_id)
        if asked is None or asked.claim is None or not asked.claim.tokens:
            self.drop(request_id)
            return None
        self._forget(request_id)
        return asked.ticket, asked.claim

    def drop(self, request_id: str) -> None:
        """Nobody needs to know any more; unknown ones are ignored."""
        asked = self._asked.get(request_id)
        if asked is not None:
            self._forget(request_id)
            self._fabric.drop(asked.ticket)

    def drop_all(self) -> None:
        """Forgets every answer; who still waits is asked about again."""
        for request_id in list(self._asked):
            self.drop(request_id)

    def _ask(self, life: Life, request: EngineRequest) -> _Asked:
        """What was asked about a request as long as it is now."""
        asked = self._asked.get(request.id)
        if asked is not None and asked.tokens == request.tokens:
            return asked
        self.drop(request.id)
        query = Query(tenant=life.tenant.tag, chain=life.chain(request), tokens=Tokens(request.tokens))
        asked = self._asked[request.id] = _Asked(self._fabric.begin(query), request.tokens)
        return asked

    def _forget(self, request_id: str) -> None:
        del self._asked[request_id]
        self._unanswered.discard(request_id)
