"""From a validated body to the engine's requests: tokens, bounds, seeds, tenant.

Knows the model's tokenizer and the engine's limits. Runs on the worker thread, for long prompts take long.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from kvist.base.ids import SALTED, TENANT_DEFAULT, RequestId, TenantId, TokenId
from kvist.base.units import Tokens
from kvist.engine.messages import EngineLimits
from kvist.engine.request import Request, Sampling
from kvist.server.bounds import check_choices, check_prompt, output_bound
from kvist.server.errors import ApiError, shown
from kvist.server.job import Job
from kvist.server.ports import Tokenizer
from kvist.server.schemas import ChatBody, CompletionBody, GenerationBody
from kvist.server.service import Service

COMPLETION_TOKENS_DEFAULT = 16
"""OpenAI's bound on a completion that names none."""


def chat_job(body: ChatBody, service: Service) -> Job:
    """The one prompt of a conversation.

    Raises:
        ApiError: something in it can not be honoured.
        RequestError: the model's template rejects the messages.
    """
    if not service.tokenizer.has_chat_template:
        raise ApiError(
            "This model has no chat template; use /v1/completions.", param="messages", code="no_chat_template"
        )
    limits = service.engine.limits
    if len(body.messages) > limits.prompt_tokens_max:
        raise ApiError(
            f"The conversation has {len(body.messages)} messages, more than the {limits.prompt_tokens_max} "
            "tokens that a prompt may have. Shorten it.",
            param="messages",
            code="context_length_exceeded",
        )
    roles = {"developer": "system"}
    messages = [{"role": roles.get(each.role, each.role), "content": each.content} for each in body.messages]
    prompt = service.tokenizer.encode_chat(messages)
    check_prompt(prompt, limits, param="messages")
    name, asked = _chat_tokens_max(body)
    bound = output_bound(len(prompt), asked, limits=limits, default=None, param=name)
    return _job(body, service, [(tuple(prompt), bound)], _sampling(body, logprobs=_chat_logprobs(body)))


def completion_job(body: CompletionBody, service: Service) -> Job:
    """The prompts of a completion.

    Raises:
        ApiError: something in it can not be honoured.
    """
    n = body.n or 1
    if body.best_of not in {None, n}:
        raise ApiError(
            f"'best_of' is {shown(body.best_of)}; only a value equal to n ({n}) is supported.",
            param="best_of",
            code="unsupported_parameter",
        )
    limits = service.engine.limits
    check_choices(len(body.prompt), n, service.settings.choices_max, limits)
    sequences = []
    for given in body.prompt:
        prompt = _encoded(given, service.tokenizer, limits)
        bound = output_bound(len(prompt), body.max_tokens, limits=limits, default=COMPLETION_TOKENS_DEFAULT)
        sequences.append((tuple(prompt), bound))
    return _job(body, service, sequences, _sampling(body, logprobs=body.logprobs))


def _encoded(given: str | list[TokenId], tokenizer: Tokenizer, limits: EngineLimits) -> list[TokenId]:
    # An empty text is an empty prompt, even where the tokenizer would put a token before it.
    prompt = (tokenizer.encode(given) if given else []) if isinstance(given, str) else given
    check_prompt(prompt, limits, param="prompt")
    return prompt


def _job(
    body: GenerationBody, service: Service, sequences: Sequence[tuple[tuple[TokenId, ...], Tokens]], sampling: Sampling
) -> Job:
    n = body.n or 1
    check_choices(len(sequences), n, service.settings.choices_max, service.engine.limits)
    if body.stream_options is not None and not body.stream:
        raise ApiError("'stream_options' needs 'stream': true.", param="stream_options", code="invalid_value")
    seed = service.draw() if body.seed is None else body.seed
    tenant = TENANT_DEFAULT if body.cache_salt is None else TenantId(SALTED + body.cache_salt)
    stop_tokens = frozenset[TokenId]() if body.ignore_eos else service.tokenizer.stop_tokens
    choices = [sequence for sequence in sequences for _ in range(n)]
    return Job(
        requests=tuple(
            Request(
                id=RequestId(f"{service.new_id()}-{index}"),
                tenant=tenant,
                prompt=prompt,
                output_tokens_max=bound,
                sampling=replace(sampling, seed=choice_seed(seed, index)),
                stop_tokens=stop_tokens,
            )
            for index, (prompt, bound) in enumerate(choices)
        ),
        n=n,
        stops=tuple(body.stop or ()),
        streams=bool(body.stream),
        includes_usage=body.stream_options is not None and body.stream_options.include_usage,
    )


def _sampling(body: GenerationBody, *, logprobs: int | None) -> Sampling:
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=body.top_k if body.top_k is not None and body.top_k > 0 else None,
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=0.0 if body.min_p is None else body.min_p,
        logprobs=logprobs,
    )


def choice_seed(seed: int, index: int) -> int:
    """The seed of the choice with this index: the first keeps the request's, the others' are independent of it.

    >>> choice_seed(7, 0), choice_seed(7, 1) != choice_seed(7, 2) != 7
    (7, True)
    """
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _chat_tokens_max(body: ChatBody) -> tuple[str, int | None]:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise ApiError(
            f"'max_tokens' ({shown(old)}) and 'max_completion_tokens' ({shown(new)}) say different things; send one.",
            param="max_tokens",
            code="invalid_value",
        )
    return ("max_tokens", old) if new is None else ("max_completion_tokens", new)


def _chat_logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise ApiError("'top_logprobs' needs 'logprobs': true.", param="top_logprobs", code="invalid_value")
    return None
