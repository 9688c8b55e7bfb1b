"""The demonstration of a first start, against a real server on a loopback socket."""

import asyncio
from collections.abc import Callable

from kvist.app.clock import SystemClock
from kvist.lab.client import Target, open_client
from kvist.lab.demo import DemoResult, explain_demo, run_demo
from kvist.lab.dialect import choose_model


def test_the_second_turn_of_a_conversation_is_faster(pocket: type, running: Callable) -> None:
    async def go(url: str) -> DemoResult:
        async with open_client(Target(url=url), SystemClock()) as client:
            return await run_demo(client, await choose_model(client, None))

    with running(pocket()) as url:
        result = asyncio.run(go(url))
    assert result.endpoint == "chat/completions"
    assert result.cold.cached_tokens == 0
    assert 0 < result.warm.computed_tokens < 64
    assert result.speedup > 2
    assert "were already in KV blocks" in explain_demo(result)
