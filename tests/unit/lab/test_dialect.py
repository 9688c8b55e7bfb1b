import asyncio
from collections.abc import Callable

import httpx
import pytest

from kvist.base.errors import ConfigError
from kvist.lab.client import ServedModel
from kvist.lab.dialect import Completions, Dialect, as_text, choose_model, negotiate
from kvist.lab.draw import Span
from kvist.lab.failure import CallError

TINY = ServedModel(name="tiny", tokens_max=4096)
IDS = Span(low=1000, high=2000)


def with_client(opened: Callable, act: Callable, handler: Callable | None = None) -> object:
    async def go() -> object:
        async with opened(handler) as client:
            return await act(client)

    return asyncio.run(go())


def negotiated(opened: Callable, handler: Callable | None = None) -> Dialect:
    return with_client(opened, lambda client: negotiate(client, TINY, IDS), handler).dialect


def test_the_richest_form_is_taken_when_the_server_takes_it(opened: Callable, simulated: object) -> None:
    assert negotiated(opened) == Dialect(prompt="token ids", ignore_eos=True, usage=True, refusals=())
    assert simulated.bodies[0]["prompt"] == [1000, 2000]  # both ends, so that an id too large shows at once


@pytest.mark.parametrize(
    ("takes_ids", "unknown", "expected"),
    [
        (True, ("ignore_eos",), ("token ids", False, True, 1)),
        (True, ("stream_options",), ("token ids", True, False, 2)),
        (True, ("ignore_eos", "stream_options"), ("token ids", False, False, 3)),
        (False, (), ("text", True, True, 4)),
        (False, ("ignore_eos", "stream_options"), ("text", False, False, 7)),
    ],
)
def test_only_what_is_refused_is_given_up(
    opened: Callable, simulated: object, takes_ids: bool, unknown: tuple[str, ...], expected: tuple[object, ...]
) -> None:
    simulated.takes_ids, simulated.unknown = takes_ids, unknown
    dialect = negotiated(opened)
    assert (dialect.prompt, dialect.ignore_eos, dialect.usage, len(dialect.refusals)) == expected
    assert all("answered 400" in refusal for refusal in dialect.refusals)


def test_a_server_that_refuses_everything_is_quoted(opened: Callable, simulated: object) -> None:
    simulated.unknown = ("temperature",)
    with pytest.raises(CallError, match="unknown field temperature") as caught:
        negotiated(opened)
    assert caught.value.status == 400
    assert len(simulated.bodies) == 8


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_other_failures_are_not_taken_for_a_dialect(opened: Callable, status: int) -> None:
    calls = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return httpx.Response(status, json={"error": {"message": "no"}})

    with pytest.raises(CallError) as caught:
        negotiated(opened, handler)
    assert (caught.value.status, len(calls)) == (status, 1)


def test_a_request_says_what_the_dialect_allows_and_no_more(opened: Callable, simulated: object) -> None:
    plain = Dialect(prompt="text", ignore_eos=False, usage=False)
    with_client(opened, lambda client: Completions(client, TINY, plain).ask((0, 1), 3))
    assert simulated.bodies[-1] == {
        "model": "tiny",
        "prompt": "time year",
        "max_tokens": 3,
        "temperature": 0,
        "stream": True,
    }
    rich = Dialect(prompt="token ids", ignore_eos=True, usage=True)
    answer = with_client(opened, lambda client: Completions(client, TINY, rich).ask((7, 8), 3))
    assert simulated.bodies[-1]["prompt"] == [7, 8]
    assert simulated.bodies[-1]["ignore_eos"] is True
    assert (answer.usage.prompt_tokens, answer.output_tokens) == (2, 3)


def test_the_only_model_is_chosen_and_several_are_asked_about(opened: Callable, simulated: object) -> None:
    assert with_client(opened, lambda client: choose_model(client, None)) == TINY
    simulated.models = {"data": [{"id": "a"}, {"id": "b"}]}
    assert with_client(opened, lambda client: choose_model(client, "b")) == ServedModel(name="b")
    with pytest.raises(ConfigError, match="serves 'a', 'b'; name one with --model"):
        with_client(opened, lambda client: choose_model(client, None))
    with pytest.raises(ConfigError, match="does not serve 'c'; it serves 'a', 'b'"):
        with_client(opened, lambda client: choose_model(client, "c"))
    simulated.models = {"data": []}
    with pytest.raises(ConfigError, match="serves no model"):
        with_client(opened, lambda client: choose_model(client, None))


def test_a_server_without_a_listing_serves_what_was_named(opened: Callable, simulated: object) -> None:
    simulated.models_status = 404
    assert with_client(opened, lambda client: choose_model(client, "x")) == ServedModel(name="x")
    with pytest.raises(CallError, match="404"):
        with_client(opened, lambda client: choose_model(client, None))
    simulated.models_status = 401
    with pytest.raises(CallError, match="401"):
        with_client(opened, lambda client: choose_model(client, "x"))


def test_text_has_a_word_for_each_token_id() -> None:
    assert len(as_text(range(5000)).split()) == 5000
    assert len(set(as_text(range(64)).split())) == 64
