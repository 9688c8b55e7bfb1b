"""What is told of a decision: every figure behind it, and every token once."""

import json

from kvist.base.units import Bytes, Tokens
from kvist.fabric.messages import Decision, Option, Source
from kvist.server.explain import explained


def source(tier: str, tokens: int, loaded: int) -> Source:
    return Source(tier=tier, tokens=Tokens(tokens), bytes=Bytes(loaded))


NOTHING = Option(tokens=Tokens(0), sources=(), load_s=0.0, prefill_s=2.0)
DISK = Option(tokens=Tokens(64), sources=(source("disk", 64, 512),), load_s=0.25, prefill_s=0.5)


def test_tokens_of_one_tier_are_added_up_over_sequences() -> None:
    shown = explained([source("G1", 16, 0), source("disk", 32, 256), source("disk", 16, 128)], None)
    assert shown == {
        "sources": [
            {"tier": "G1", "tokens": 16, "bytes_loaded": 0},
            {"tier": "disk", "tokens": 48, "bytes_loaded": 384},
        ],
        "decision": None,
    }


def test_a_decision_shows_what_was_compared_and_chosen() -> None:
    decision = Decision(chosen=DISK, options=(NOTHING, DISK), reason="it is faster", explored=True)
    shown = explained([], decision)["decision"]
    assert shown["reason"] == "it is faster"
    assert shown["explored"] is True
    assert shown["chosen"] == shown["options"][1]
    assert [option["total_ms"] for option in shown["options"]] == [2000.0, 750.0]
    assert shown["chosen"] == {
        "tokens": 64,
        "sources": [{"tier": "disk", "tokens": 64, "bytes": 512}],
        "load_ms": 250.0,
        "prefill_ms": 500.0,
        "total_ms": 750.0,
    }
    assert json.loads(json.dumps(shown)) == shown
