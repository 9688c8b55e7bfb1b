"""What the engine itself does for a step of steady decode, in calls of Python functions.

Times of a few microseconds cannot be held on a machine that others use; these counts are exact. They guard that a
request that merely decodes costs a handful of calls in a step, that the cost does not depend on how long it has been
running, and that a block that fills is paid for once in sixteen steps. A count that goes up needs a reason; one that
goes down should lower its ceiling here.
"""

import sys
from collections.abc import Sequence
from types import FrameType

import pytest

from kvist.base.ids import BlockId, RequestId, TenantId, TokenId
from kvist.base.units import Bytes, Tokens
from kvist.blocks.keys import namespace_of
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.engine.batch import Batch, Drawn
from kvist.engine.core import EngineCore
from kvist.engine.messages import EngineLimits, Event
from kvist.engine.request import Request, Sampling
from kvist.engine.settings import EngineSettings
from kvist.geometry.groups import KvGroup

BLOCK_TOKENS = 16
PROMPT = 40
OUTPUT = 400
VOCABULARY = 1000
GROUP = KvGroup(layers=(0,), kv_heads=1, head_dim_k=8, head_dim_v=8)

CALLS_OF_REQUEST, CALLS_OF_STEP = 2, 40
CALLS_OF_BLOCK = 38


class Constant:
    """A backend that computes nothing: what is counted is the engine alone."""

    def run(self, batch: Batch) -> Sequence[Drawn | None]:
        return [Drawn(token=TokenId(7))] * len(batch)

    def copy_out(self, group: int, blocks: Sequence[BlockId], into: Sequence[memoryview]) -> None:
        raise AssertionError("there are no tiers")

    def copy_in(self, group: int, blocks: Sequence[BlockId], sources: Sequence[memoryview]) -> None:
        raise AssertionError("there are no tiers")


def decoding(running: int) -> EngineCore:
    """An engine with so many requests, all past their prompts, which are all of one length and all different."""
    blocks = running * (-(-(PROMPT + OUTPUT) // BLOCK_TOKENS) + 1)
    settings = EngineSettings(
        groups=(GROUP,),
        kv_bytes=Bytes(0),
        kv_bytes_per_token=Bytes(0),
        block_tokens=BLOCK_TOKENS,
        step_tokens=running * PROMPT,
        sequences_max=running,
    )
    cache = PrefixCache(namespace_of({}), [BlockPool(blocks)], [None], block_tokens=BLOCK_TOKENS)
    core = EngineCore(Constant(), cache, settings, secret=bytes(32))
    limits = EngineLimits(
        model_tokens_max=Tokens(PROMPT + OUTPUT),
        prompt_tokens_max=Tokens(PROMPT),
        output_tokens_max=Tokens(OUTPUT),
        longest_request_tokens=Tokens(PROMPT + OUTPUT),
        sequences_max=running,
        waiting_max=running,
        vocab_size=VOCABULARY,
    )
    events: list[Event] = []
    for each in range(running):
        request = Request(
            id=RequestId(str(each)),
            tenant=TenantId("blue"),
            prompt=tuple(TokenId((each * 31 + place) % VOCABULARY) for place in range(PROMPT)),
            output_tokens_max=Tokens(OUTPUT),
            sampling=Sampling(temperature=0),
            stop_tokens=frozenset({TokenId(2)}),
        )
        core.submit(request, limits, events.append)
    core.step()
    assert core.statistics().running == running
    return core


def calls(core: EngineCore) -> int:
    """Python functions that one step enters."""
    found = 0

    def look(_frame: FrameType, event: str, _: object) -> None:
        nonlocal found
        found += event == "call"

    sys.setprofile(look)
    try:
        core.step()
    finally:
        sys.setprofile(None)
    return found


def steps(running: int, count: int) -> list[int]:
    """Calls of so many steps, from the first of a block on."""
    core = decoding(running)
    while (PROMPT + core.statistics().tokens_output // running) % BLOCK_TOKENS:
        core.step()
    return [calls(core) for _ in range(count)]


@pytest.mark.parametrize("running", [64, 256])
def test_a_step_of_steady_decode_costs_a_few_calls_for_each_request(running: int) -> None:
    quiet = sorted(steps(running, 2 * BLOCK_TOKENS))[:BLOCK_TOKENS]
    assert quiet[0] == quiet[-1], quiet
    assert quiet[0] <= CALLS_OF_REQUEST * running + CALLS_OF_STEP, quiet[0] / running


def test_a_block_that_fills_is_paid_for_once_in_sixteen_steps() -> None:
    found = steps(64, 4 * BLOCK_TOKENS)
    quiet = CALLS_OF_REQUEST * 64 + CALLS_OF_STEP
    dear = [each for each in found if each > quiet]
    assert len(dear) <= 2 * 4, found
    assert sum(each - quiet for each in dear) <= 4 * CALLS_OF_BLOCK * 64, found


def test_calls_do_not_depend_on_how_long_a_request_has_run() -> None:
    found = steps(64, 16 * BLOCK_TOKENS)
    rounds = [found[at : at + BLOCK_TOKENS] for at in range(0, len(found), BLOCK_TOKENS)]
    # A few calls more or less, as a step's columns are kept or made anew.
    assert max(map(sum, rounds[1:])) - min(map(sum, rounds[1:])) <= 8, [sum(each) for each in rounds]
