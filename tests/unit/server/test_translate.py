from dataclasses import replace
from typing import Any

import pytest

from fakes.engine import LIMITS
from fakes.serving import MODEL, chat, completion, service_of
from fakes.tokenizer import BEGIN, END, ByteTokenizer
from kvist.base.units import Tokens
from kvist.server.errors import ApiError
from kvist.server.job import Job
from kvist.server.schemas import ChatBody, CompletionBody, validated
from kvist.server.settings import ServerSettings
from kvist.server.translate import chat_job, choice_seed, completion_job


@pytest.fixture
def service(start):
    return service_of(start(), ByteTokenizer())


def chat_of(service, **fields: Any) -> Job:
    return chat_job(validated(ChatBody, chat(**fields)), service)


def completion_of(service, **fields: Any) -> Job:
    return completion_job(validated(CompletionBody, completion(**fields)), service)


def fault_of(make, service, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        make(service, **fields)
    assert caught.value.family.status == 400
    return caught.value


def test_a_chat_takes_the_rest_of_the_context(service) -> None:
    [request] = chat_of(service).requests
    assert request.prompt[0] == BEGIN
    assert bytes(token for token in request.prompt if token < 256) == b"user\nHiassistant\n"
    assert request.output_tokens_max == LIMITS.output_tokens_max
    assert request.stop_tokens == {END}


def test_a_completion_takes_sixteen_tokens(service) -> None:
    [request] = completion_of(service).requests
    assert request.prompt == (BEGIN, *b"Hi")
    assert request.output_tokens_max == 16


def test_token_ids_are_taken_as_they_are(service) -> None:
    assert [each.prompt for each in completion_of(service, prompt=[[1, 2], [3]]).requests] == [(1, 2), (3,)]


def test_the_defaults_are_openais(service) -> None:
    [request] = completion_of(service).requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (1.0, None, 1.0, 0.0)
    assert sampling.logprobs is None


def test_every_parameter_reaches_the_engine(service) -> None:
    fields = {"temperature": 0, "top_k": 5, "top_p": 0.5, "min_p": 0.25, "seed": 7, "max_tokens": 9, "logprobs": 3}
    job = completion_of(service, **fields, stop=["a", "b"], stream=True, stream_options={"include_usage": True})
    [request] = job.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.0, 5, 0.5, 0.25)
    assert (sampling.seed, sampling.logprobs, request.output_tokens_max) == (7, 3, 9)
    assert (job.stops, job.streams, job.includes_usage) == (("a", "b"), True, True)


@pytest.mark.parametrize("top_k", [-1, 0, None])
def test_top_k_can_be_off(service, top_k: int | None) -> None:
    assert completion_of(service, top_k=top_k).requests[0].sampling.top_k is None


def test_ignoring_the_end_leaves_no_stop_token(service) -> None:
    assert completion_of(service, ignore_eos=True).requests[0].stop_tokens == frozenset()


def test_a_salt_is_a_tenant_and_none_is_another(service) -> None:
    tenants = [chat_of(service, cache_salt=salt).requests[0].tenant for salt in (None, "a", "b", "default", "salt:a")]
    assert len(set(tenants)) == 5
    assert chat_of(service, cache_salt="a").requests[0].tenant == tenants[1]


def test_choices_stand_together_and_have_seeds_and_ids_of_their_own(service) -> None:
    job = completion_of(service, prompt=["a", "b"], n=2, seed=5)
    assert [each.prompt[1] for each in job.requests] == [*b"aabb"]
    assert len({each.sampling.seed for each in job.requests}) == 4
    assert len({each.id for each in job.requests}) == 4
    assert job.requests[0].sampling.seed == 5
    assert job.tokens_prompt == 4


def test_the_same_seed_gives_the_same_seeds(service) -> None:
    seeds = [[each.sampling.seed for each in chat_of(service, n=3, seed=5).requests] for _ in range(2)]
    assert seeds[0] == seeds[1]


def test_without_a_seed_one_is_drawn(start) -> None:
    service = service_of(start(), ByteTokenizer())
    draws = iter(range(100))
    service.draw = lambda: next(draws)
    first, second = (chat_of(service).requests[0].sampling.seed for _ in range(2))
    assert first != second


def test_seeds_of_choices_fit_into_64_bits() -> None:
    seeds = {choice_seed(-(2**63), index) for index in range(1000)}
    assert len(seeds) == 1000
    assert all(-(2**63) <= seed < 2**64 for seed in seeds)


def test_developers_speak_as_the_system(service) -> None:
    job = chat_of(service, messages=[{"role": "developer", "content": "Be kind"}, {"role": "user", "content": "Hi"}])
    assert b"system\nBe kind" in bytes(token for token in job.requests[0].prompt if token < 256)


def test_chat_logprobs(service) -> None:
    for fields, expected in (
        ({}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 4}, 4),
        ({"logprobs": False, "top_logprobs": 0}, None),
    ):
        assert chat_of(service, **fields).requests[0].sampling.logprobs == expected
    assert fault_of(chat_of, service, top_logprobs=2).param == "top_logprobs"


def test_two_bounds_must_agree(service) -> None:
    assert chat_of(service, max_tokens=5, max_completion_tokens=5).requests[0].output_tokens_max == 5
    assert chat_of(service, max_completion_tokens=6).requests[0].output_tokens_max == 6
    assert fault_of(chat_of, service, max_tokens=5, max_completion_tokens=6).param == "max_tokens"
    assert fault_of(chat_of, service, max_completion_tokens=501).param == "max_completion_tokens"


def test_best_of_is_n_or_nothing(service) -> None:
    assert len(completion_of(service, best_of=2, n=2).requests) == 2
    assert fault_of(completion_of, service, best_of=2).param == "best_of"


def test_stream_options_need_a_stream(service) -> None:
    assert fault_of(chat_of, service, stream_options={"include_usage": True}).param == "stream_options"


@pytest.mark.parametrize("prompt", ["", [""], [[]], ["a", ""]])
def test_an_empty_prompt_is_refused(service, prompt: object) -> None:
    assert fault_of(completion_of, service, prompt=prompt).code == "empty_prompt"


def test_a_prompt_of_wrong_ids_or_too_many_is_refused(service) -> None:
    assert fault_of(completion_of, service, prompt=[-1]).param == "prompt"
    assert fault_of(completion_of, service, prompt=[260]).param == "prompt"
    assert fault_of(completion_of, service, prompt="x" * 800).code == "context_length_exceeded"
    content = [{"role": "user", "content": "x" * 800}]
    assert fault_of(chat_of, service, messages=content).code == "context_length_exceeded"


def test_more_messages_than_tokens_are_not_even_rendered(start) -> None:
    service = service_of(start(limits=replace(LIMITS, prompt_tokens_max=Tokens(3))), ByteTokenizer())
    messages = [{"role": "user", "content": ""}] * 4
    assert fault_of(chat_of, service, messages=messages).code == "context_length_exceeded"


def test_a_model_without_template_does_not_chat(start) -> None:
    service = service_of(start(), ByteTokenizer(has_chat_template=False))
    assert fault_of(chat_of, service).code == "no_chat_template"


def test_no_more_choices_than_the_server_takes(start) -> None:
    service = service_of(start(), ByteTokenizer(), ServerSettings(model=MODEL, choices_max=5))
    assert fault_of(completion_of, service, prompt=["a", "b"], n=3).param == "n"
    assert fault_of(chat_of, service, n=6).param == "n"
