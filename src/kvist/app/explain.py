"""How a prompt would begin if it came now: what the engine has, what the tiers have, and what would be decided.

Nothing is loaded, held or counted. Runs in its caller's thread and waits there, for the engine to reach the end of a
step and for shared tiers to answer.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError
from functools import partial

from kvist.base.errors import KvistError
from kvist.base.ids import TenantId, TokenId
from kvist.base.units import Bytes
from kvist.engine.sources import OWN_MEMORY
from kvist.engine.thread import EngineThread
from kvist.fabric.control import Fabric
from kvist.fabric.messages import Query, Source
from kvist.server.administration_ports import Explain, Explanation

_LOOK_S = 0.005
"""How often to look whether shared tiers have answered; they have a deadline of their own, well under a second."""


def explained_by(engine: EngineThread, fabric: Fabric) -> Explain:
    """Explains prompts by a running engine and its tiers."""
    return partial(_explain, engine, fabric)


def _explain(
    engine: EngineThread, fabric: Fabric, tokens: Sequence[TokenId], tenant: TenantId, timeout_s: float
) -> Explanation:
    try:
        standing = engine.standing(tokens, tenant).result(timeout_s)
    except CancelledError as error:
        raise KvistError("the engine was stopped") from error
    ticket = fabric.begin(Query(tenant=standing.tenant, chain=standing.chain, tokens=standing.tokens))
    try:
        pause = threading.Event()
        while not fabric.is_answered(ticket):
            pause.wait(_LOOK_S)
        plan = fabric.foresee(ticket, standing.resident)
    finally:
        fabric.drop(ticket)
    if plan.tokens > standing.tokens_cached:
        return Explanation(
            sources=plan.decision.chosen.sources, decision=plan.decision, prefix_end=plan.decision.reason
        )
    own = Source(tier=OWN_MEMORY, tokens=standing.tokens_cached, bytes=Bytes(0))
    sources = (own,) if standing.tokens_cached else ()
    return Explanation(sources=sources, decision=plan.decision, prefix_end=standing.prefix_end)
