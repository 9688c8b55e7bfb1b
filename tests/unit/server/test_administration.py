"""The operator's app: JSON in and out, errors of one shape, and a few commands at once."""

import asyncio
import threading
from concurrent.futures import Future

import httpx
import pytest

from fakes.operated import TEXT, operator, some_explanation
from fakes.serving import MODEL, SETTINGS, ask
from kvist.base.units import Bytes
from kvist.server.administration import AT_ONCE, create_administration
from kvist.server.administration_ports import Explanation
from kvist.server.settings import ServerSettings


def test_a_verb_is_a_path_and_its_answer_is_json() -> None:
    with operator() as there:
        hashes = there.store(TEXT)
        app = create_administration(there.verbs, SETTINGS)
        answer = ask(app, "/v1/cache/list", {})
        assert answer.status_code == 200
        assert [block["hash"] for block in answer.json()["blocks"]] == hashes
        assert ask(app, "/v1/cache/purge", {"hashes": hashes[:1]}).json()["unknown"] == []
        assert len(there.hashes()) == len(hashes) - 1


@pytest.mark.parametrize(
    ("path", "content", "status", "complaint"),
    [
        ("/v1/cache/destroy", b"{}", 404, "is not a verb"),
        ("/v1/cache/list/all", b"{}", 404, "Not Found"),
        ("/", b"{}", 404, "Not Found"),
        ("/v1/cache/%2e%2e", b"{}", 404, ""),
        ("/v1/cache/purge", b"", 400, "not valid JSON"),
        ("/v1/cache/purge", b"[]", 400, "must be a JSON object"),
        ("/v1/cache/purge", b'{"all": tru', 400, "not valid JSON"),
        ("/v1/cache/purge", b'{"tenant": "\xff"}', 400, "not valid JSON"),
        ("/v1/cache/purge", b'{"tenant": "\\ud800"}', 400, "not valid JSON"),
        ("/v1/cache/purge", b'{"timeout_s": NaN, "all": true}', 400, "not valid JSON"),
        ("/v1/cache/purge", b"[" * 1900, 400, "not valid JSON"),
        ("/v1/cache/purge", b'{"tenant": "' + b"x" * 3000 + b'"}', 413, "larger than"),
    ],
)
def test_what_is_no_request_is_refused_and_changes_nothing(
    path: str, content: bytes, status: int, complaint: str
) -> None:
    small = ServerSettings(model=MODEL, body_bytes_max=Bytes(2000))
    with operator() as there:
        hashes = there.store(TEXT)
        app = create_administration(there.verbs, small)
        answer = ask(app, path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == status, answer.text
        assert complaint in answer.json()["error"]["message"]
        assert there.hashes() == sorted(hashes)


def test_another_content_type_and_another_method_are_refused() -> None:
    with operator() as there:
        app = create_administration(there.verbs, SETTINGS)
        said = ask(app, "/v1/cache/tiers", content=b"{}", headers={"content-type": "text/plain"})
        assert (said.status_code, said.json()["error"]["code"]) == (415, "unsupported_media_type")
        said = ask(app, "/v1/cache/tiers")
        assert (said.status_code, said.json()["error"]["code"]) == (405, "method_not_allowed")


def test_more_commands_than_threads_are_told_to_come_again() -> None:
    answer, begun = Future(), threading.Semaphore(0)

    def explain(*_: object) -> Explanation:
        begun.release()
        return answer.result()

    async def crowd(app: object) -> tuple[int, int, list[int]]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://kvist") as client:

            async def post(verb: str, body: dict) -> int:
                return (await client.post(f"/v1/cache/{verb}", json=body)).status_code

            busy = [asyncio.create_task(post("explain", {"prompt": TEXT})) for _ in range(AT_ONCE)]
            for _ in busy:
                await asyncio.to_thread(begun.acquire)
            refused = await post("tiers", {})
            answer.set_result(some_explanation())
            done = await asyncio.gather(*busy)
            return refused, await post("tiers", {}), done

    with operator(explain=explain) as there:
        refused, after, busy = asyncio.run(crowd(create_administration(there.verbs, SETTINGS)))
    assert (refused, after, busy) == (429, 200, [200] * AT_ONCE)
