"""`kvist serve` over SmolLM2 in bfloat16, as its users meet it: the official client, conversations, tenants, samples.

Answers are compared with each other only where both came from the same cached length: in bfloat16 the shape of a chunk
is part of the result.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from real.prompts import CODE, DIALOGUE, PROSE, SOUTHERN
from real.server import WAIT_S, RealServer

pytestmark = [pytest.mark.model, pytest.mark.slow]

POOL_TOKENS = 7280
"""What 160 MiB hold of SmolLM2's KV, less than its 8,192 positions."""

RULES = (
    "You are the lamp keeper of a small harbour. Answer in plain words, in one or two short sentences, and never "
    "mention the weather. " + DIALOGUE
)
TURNS = ("Who came to the harbour today?", "What did they want from you?", "And what did you tell them?")


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    with RealServer("--model", "smollm2", "--kv-memory", "160MiB", "--step-tokens", "256") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RealServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=WAIT_S) as client:
        yield client


def say(client: OpenAI, server: RealServer, messages: list, *, stream: bool, **fields) -> tuple[str, str, object]:
    """One turn, streamed or not: its text, why it ended, and its usage."""
    asked = {"model": server.model, "messages": messages, "temperature": 0, "max_tokens": 24} | fields
    if not stream:
        answer = client.chat.completions.create(**asked)
        return answer.choices[0].message.content, answer.choices[0].finish_reason, answer.usage
    text, finish, usage = "", None, None
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            assert finish is None, "more came after the end"
            text += choice.delta.content or ""
            finish = choice.finish_reason
        usage = chunk.usage or usage
    return text, finish, usage


def cached(usage) -> int:
    return usage.prompt_tokens_details.cached_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_reuses_all_that_was_said(client: OpenAI, server: RealServer, stream: bool) -> None:
    tenant = {"extra_body": {"cache_salt": f"conversation, stream={stream}"}}
    messages = [{"role": "system", "content": RULES}]
    usages = []
    for turn in TURNS:
        messages.append({"role": "user", "content": turn})
        text, finish, usage = say(client, server, messages, stream=stream, **tenant)
        assert text.strip()
        assert finish in {"stop", "length"}
        assert 0 < usage.completion_tokens <= 24
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        messages.append({"role": "assistant", "content": text})
        usages.append(usage)
    first, second, third = usages
    assert cached(first) == 0
    assert 0 < cached(second) < cached(third)
    for before, after in ((first, second), (second, third)):
        # All of the earlier prompt but its last, unfinished block.
        assert before.prompt_tokens - 16 <= cached(after) < after.prompt_tokens


def test_a_stream_says_what_one_response_says(client: OpenAI, server: RealServer) -> None:
    messages = [{"role": "user", "content": f"Say in your own words: {PROSE}"}]
    say(client, server, messages, stream=False)
    whole, streamed = (say(client, server, messages, stream=stream) for stream in (False, True))
    assert cached(whole[2]) > 0
    assert whole == streamed


def test_salts_never_hit_each_other(server: RealServer) -> None:
    def tokens_cached(**fields: object) -> int:
        usage = server.complete(f"{CODE}\n# the same for everybody", **fields)["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert [tokens_cached(cache_salt="a"), tokens_cached(cache_salt="b"), tokens_cached()] == [0, 0, 0]
    again = [tokens_cached(cache_salt="a"), tokens_cached(cache_salt="b"), tokens_cached()]
    assert len(set(again)) == 1
    assert again[0] >= 96
    assert tokens_cached(cache_salt="A") == tokens_cached(cache_salt="a ") == tokens_cached(cache_salt="salt:a") == 0
    assert tokens_cached(cache_salt="a", prompt_cache_key="another key") == again[0]


def test_four_choices_differ_and_a_seed_brings_them_back(server: RealServer) -> None:
    def texts(seed: int) -> list[str]:
        answer = server.complete(SOUTHERN, n=4, seed=seed, temperature=1.0, max_tokens=12)
        assert answer["usage"]["completion_tokens"] <= 48
        return [choice["text"] for choice in answer["choices"]]

    server.complete(SOUTHERN)
    first, again, other = texts(7), texts(7), texts(8)
    assert first == again != other
    assert len(set(first)) == 4


def test_the_prompt_of_four_choices_counts_once(server: RealServer) -> None:
    before = server.metrics()
    usage = server.complete(f"{PROSE} {SOUTHERN} Four ways on from here:", n=4, temperature=1.0)["usage"]
    after = server.metrics_when(lambda each: each["kvist_requests_running"] == 0)
    computed = after['kvist_tokens_total{source="computed"}'] - before['kvist_tokens_total{source="computed"}']
    # One computes the prompt; each of the others no more than its last, unfinished block.
    assert usage["prompt_tokens"] <= computed + usage["prompt_tokens_details"]["cached_tokens"]
    assert computed <= usage["prompt_tokens"] + 3 * 16


def test_log_probabilities_are_of_the_tokens_that_make_the_text(client: OpenAI, server: RealServer) -> None:
    answer = client.chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": "Name three colours."}],
        temperature=0,
        max_tokens=16,
        logprobs=True,
        top_logprobs=5,
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    spoken = [each for each in content if not each.token.startswith("<|")]
    assert b"".join(bytes(each.bytes) for each in spoken).decode() == answer.choices[0].message.content
    for each in content:
        top = [entry.logprob for entry in each.top_logprobs]
        assert len(top) == 5
        assert top == sorted(top, reverse=True)
        assert each.logprob == top[0]
        assert sum(map(math.exp, top)) <= 1 + 1e-6


def test_log_probabilities_of_a_completion(server: RealServer) -> None:
    choice = server.complete("Two and two make", max_tokens=6, logprobs=2)["choices"][0]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    assert [found["text_offset"][0], len(found["token_logprobs"]), len(found["top_logprobs"])] == [0, 6, 6]
    assert all(value <= 0 for value in found["token_logprobs"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_before_it(client: OpenAI, server: RealServer, stream: bool) -> None:
    messages = [{"role": "user", "content": "Count from one to twenty in words."}]
    say(client, server, messages, stream=False)
    whole, _, _ = say(client, server, messages, stream=False)
    stop = whole[len(whole) // 2 :][:3]
    text, finish, usage = say(client, server, messages, stream=stream, stop=[stop, "never in the text"])
    assert text == whole[: whole.index(stop)]
    assert finish == "stop"
    assert usage.completion_tokens < 24


def test_token_ids_and_text_are_one_prompt(server: RealServer) -> None:
    ids = [504, 3582, 281, 260]
    server.complete(ids)
    assert server.complete(ids)["choices"] == server.complete([ids])["choices"]
    both = server.complete([ids, [*ids, 253]])
    assert [choice["index"] for choice in both["choices"]] == [0, 1]
    assert both["usage"]["prompt_tokens"] == 9


def test_the_server_says_what_it_serves(server: RealServer) -> None:
    (card,) = server.get("/v1/models").json()["data"]
    assert (Path(card["root"]) / "model.safetensors").is_file()
    assert card["max_model_len"] == POOL_TOKENS
    assert (server.get("/health").status_code, server.get("/ready").json()) == (200, {"status": "ready"})


def test_the_books_balance_when_nothing_runs(server: RealServer) -> None:
    found = server.metrics_when(lambda each: each["kvist_requests_running"] == 0)
    states = {state: found[f'kvist_kv_blocks{{group="0",state="{state}"}}'] for state in ("used", "cached", "free")}
    assert states["used"] == 0
    assert sum(states.values()) == POOL_TOKENS // 16
    assert found["kvist_failures_total"] == found["kvist_preemptions_total"] == found["kvist_out_of_memory_total"] == 0
    assert "Traceback" not in server.output()
