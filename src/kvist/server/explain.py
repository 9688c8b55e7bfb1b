"""Why a prompt began where it did, as JSON: tokens by tier, what was decided, among what, and on which figures."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvist.fabric.messages import Decision, Option, Source


def explained(sources: Sequence[Source], decision: Decision | None) -> dict[str, Any]:
    """Where cached tokens came from, and the decision behind it.

    Args:
        sources: of one or several sequences; those of one tier are added up.
        decision: None where no tier was asked.
    """
    return {"sources": _by_tier(sources), "decision": None if decision is None else _decision(decision)}


def _by_tier(sources: Sequence[Source]) -> list[dict[str, Any]]:
    tokens: Counter[str] = Counter()
    loaded: Counter[str] = Counter()
    for source in sources:
        tokens[source.tier] += source.tokens
        loaded[source.tier] += source.bytes
    return [{"tier": tier, "tokens": tokens[tier], "bytes_loaded": loaded[tier]} for tier in tokens]


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "reason": decision.reason,
        "explored": decision.explored,
        "chosen": _option(decision.chosen),
        "options": [_option(option) for option in decision.options],
    }


def _option(option: Option) -> dict[str, Any]:
    return {
        "tokens": option.tokens,
        "sources": [{"tier": source.tier, "tokens": source.tokens, "bytes": source.bytes} for source in option.sources],
        "load_ms": round(option.load_s * 1e3, 3),
        "prefill_ms": round(option.prefill_s * 1e3, 3),
        "total_ms": round(option.total_s * 1e3, 3),
    }
