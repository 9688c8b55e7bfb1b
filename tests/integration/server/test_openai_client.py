"""The official client of OpenAI gets through a conversation and understands every refusal."""

from collections.abc import Iterator

import openai
import pytest

from fakes.engine import Script, text_script
from fakes.served import Served

HELLO = [{"role": "user", "content": "Hello 😀"}]


@pytest.fixture
def client_of() -> Iterator:
    clients: list[openai.OpenAI] = []

    def client_of(served: Served) -> openai.OpenAI:
        clients.append(openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=30))
        return clients[-1]

    yield client_of
    for client in clients:
        client.close()


def test_a_conversation_of_several_turns(serve, client_of) -> None:
    served = serve(lambda request: text_script(f"answer to {len(request.prompt)} tokens 😀", tokens_cached=1))
    client = client_of(served)
    messages = [{"role": "system", "content": "Be brief"}]
    lengths = []
    for turn in range(3):
        messages.append({"role": "user", "content": f"question {turn}"})
        answer = client.chat.completions.create(model=served.model, messages=messages, seed=turn, temperature=0.5)
        message = answer.choices[0].message
        assert message.content == f"answer to {answer.usage.prompt_tokens} tokens 😀"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.prompt_tokens_details.cached_tokens == 1
        # Sent back as clients do, with all that came along.
        messages.append(message.model_dump())
        lengths.append(answer.usage.prompt_tokens)
    assert lengths == sorted(set(lengths))


def test_the_same_as_a_stream(serve, client_of) -> None:
    served = serve(text_script("ein Wörtchen 😀", tokens_cached=3))
    stream = client_of(served).chat.completions.create(
        model=served.model, messages=HELLO, stream=True, stream_options={"include_usage": True}, n=2
    )
    texts, finishes, usages = ["", ""], {}, []
    for chunk in stream:
        if chunk.usage is not None:
            usages.append(chunk.usage)
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                finishes[choice.index] = choice.finish_reason
    assert texts == ["ein Wörtchen 😀"] * 2
    assert finishes == {0: "stop", 1: "stop"}
    assert [(each.completion_tokens, each.prompt_tokens_details.cached_tokens) for each in usages] == [(38, 3)]


def test_log_probabilities(serve, client_of) -> None:
    served = serve(text_script("ab"))
    answer = client_of(served).chat.completions.create(
        model=served.model, messages=HELLO, logprobs=True, top_logprobs=2, max_completion_tokens=2
    )
    assert [each.token for each in answer.choices[0].logprobs.content] == ["a", "b"]
    assert [each.bytes for each in answer.choices[0].logprobs.content[0].top_logprobs] == [[98], [97]]
    legacy = client_of(served).completions.create(model=served.model, prompt="x", logprobs=1, max_tokens=2)
    assert legacy.choices[0].logprobs.tokens == ["a", "b"]
    assert legacy.choices[0].logprobs.text_offset == [0, 1]


@pytest.mark.parametrize("prompt", ["Once", ["Once"], [79, 110, 99, 101], [[79, 110, 99, 101]]])
def test_completions_of_text_and_of_tokens(serve, client_of, prompt: object) -> None:
    served = serve()
    client = client_of(served)
    assert client.completions.create(model=served.model, prompt=prompt, stop="ce").choices[0].text == "On"
    stream = client.completions.create(model=served.model, prompt=prompt, stop="ce", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "On"


def test_the_model_is_found(serve, client_of) -> None:
    served = serve()
    client = client_of(served)
    assert [model.id for model in client.models.list()] == [served.model]
    assert client.models.retrieve(served.model).owned_by == "kvist"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_refusals_become_the_clients_own_errors(serve, client_of) -> None:
    scripts = {b"busy": Script(refusal="busy"), b"fails": Script(fails_after=0), b"later": Script(fails_after=2)}
    served = serve(lambda request: scripts[bytes(request.prompt[1:])])
    client = client_of(served)

    def ask(prompt: str, **rest: object) -> object:
        return client.completions.create(**{"model": served.model, "prompt": prompt} | rest)

    with pytest.raises(openai.NotFoundError) as unknown:
        ask("x", model="gpt-4")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        ask("x", temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.RateLimitError) as busy:
        ask("busy")
    assert busy.value.response.headers["retry-after"] == "1"
    with pytest.raises(openai.InternalServerError, match="out of memory"):
        ask("fails")
    with pytest.raises(openai.APIError, match="out of memory"):
        list(ask("later", stream=True))
