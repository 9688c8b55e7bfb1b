"""Two hundred clients at once, more than the engine runs at a time: each gets its own answer."""

import asyncio
import json
from dataclasses import replace

import httpx

from fakes.engine import LIMITS
from fakes.served import Served, echo_program

CLIENTS = 200


async def ask(client: httpx.AsyncClient, served: Served, number: int) -> str:
    prompt = f"client {number}"
    body = {"model": served.model, "prompt": prompt, "max_tokens": 30, "stream": number % 2 == 0}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    if not body["stream"]:
        return response.json()["choices"][0]["text"]
    datas = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert datas[-1] == "[DONE]"
    return "".join(json.loads(data)["choices"][0]["text"] for data in datas[:-1])


async def ask_all(served: Served) -> list[str]:
    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=served.url, limits=limits, timeout=60) as client:
        asking = [asyncio.create_task(ask(client, served, number)) for number in range(CLIENTS)]
        # All are in before the first one may go on.
        await asyncio.to_thread(served.engine.wait_for, lambda each: each.running + each.waiting == CLIENTS, 60)
        served.engine.release()
        return await asyncio.gather(*asking)


def test_each_gets_its_own_answer(serve) -> None:
    served = serve(lambda request: replace(echo_program(request), waits=True), replace(LIMITS, sequences_max=8))
    assert asyncio.run(ask_all(served)) == [f"client {number}" for number in range(CLIENTS)]
    assert served.engine.statistics().finished == CLIENTS
