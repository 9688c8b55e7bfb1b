"""Which requests can never run, or not now: all bounds checked together, in one place.

The server asks nothing else before it queues a request, and the start-up check asks the same questions of the
configuration.
"""

from collections.abc import Iterator

from kvist.base.errors import ConfigError
from kvist.engine.messages import EngineLimits, Refused
from kvist.engine.request import Request


def check_limits(limits: EngineLimits, *, step_tokens: int) -> None:
    """Refuses bounds that contradict each other.

    Raises:
        ConfigError: naming both values and what to change.
    """
    if limits.prompt_tokens_max >= limits.model_tokens_max:
        raise ConfigError(
            f"prompts of {limits.prompt_tokens_max} tokens leave no room for output in sequences of "
            f"{limits.model_tokens_max}; lower --prompt-tokens-max or raise --model-tokens-max"
        )
    if limits.output_tokens_max >= limits.model_tokens_max:
        raise ConfigError(
            f"outputs of {limits.output_tokens_max} tokens leave no room for a prompt in sequences of "
            f"{limits.model_tokens_max}; lower --output-tokens-max or raise --model-tokens-max"
        )
    if step_tokens < limits.sequences_max:
        raise ConfigError(
            f"a step of {step_tokens} tokens cannot decode {limits.sequences_max} sequences; "
            f"raise --step-tokens or lower --sequences-max"
        )


def reason_to_refuse(request: Request, limits: EngineLimits, *, live: int, known: bool) -> Refused | None:
    """None when the request may be queued, else its refusal.

    Args:
        request: what is asked.
        limits: the engine's bounds.
        live: requests that run or wait now.
        known: whether a live request has this id.
    """
    if known:
        return Refused(request_id=request.id, kind="invalid", message=f"request {request.id!r} is running already")
    for param, complaint in _complaints(request, limits):
        return Refused(request_id=request.id, kind="invalid", message=complaint, param=param)
    if live >= limits.sequences_max + limits.waiting_max:
        message = f"{live} requests run or wait already; try again later"
        return Refused(request_id=request.id, kind="busy", message=message)
    return None


def _complaints(request: Request, limits: EngineLimits) -> Iterator[tuple[str, str]]:
    """What can never run, as (field to blame, sentence); later ones assume that earlier ones did not apply."""
    prompt, output = len(request.prompt), request.output_tokens_max
    if not prompt:
        yield "prompt", "the prompt is empty; send at least one token"
    if output < 1:
        yield "max_tokens", f"an output bound of {output} tokens is not at least 1"
    for token in {min(request.prompt), max(request.prompt)}:
        if not 0 <= token < limits.vocab_size:
            yield "prompt", f"token id {token} is not in [0, {limits.vocab_size})"
    if prompt > limits.prompt_tokens_max:
        yield "prompt", f"the prompt has {prompt} tokens, the limit is {limits.prompt_tokens_max}"
    if output > limits.output_tokens_max:
        yield "max_tokens", f"up to {output} output tokens were asked for, the limit is {limits.output_tokens_max}"
    if prompt + output > limits.model_tokens_max:
        yield (
            "max_tokens",
            f"{prompt} prompt tokens and up to {output} output tokens exceed the limit of {limits.model_tokens_max}",
        )
    if prompt + output - 1 > limits.longest_request_tokens:
        yield (
            "max_tokens",
            f"{prompt} prompt tokens and up to {output} output tokens can never fit: the KV memory holds one sequence "
            f"of {limits.longest_request_tokens} tokens; ask for less output or give the engine more --kv-memory",
        )
