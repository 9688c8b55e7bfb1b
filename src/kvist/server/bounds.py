"""How many tokens a request may have: the prompt's length, the output's bound, and both against the engine's limits.

Pure: numbers in, a number or a refusal out.
"""

from collections.abc import Sequence

from kvist.base.ids import TokenId
from kvist.base.units import Tokens
from kvist.engine.messages import EngineLimits
from kvist.server.errors import ApiError, shown


def sequence_tokens_max(limits: EngineLimits) -> Tokens:
    """Prompt plus output of the longest sequence that can ever run."""
    return min(limits.model_tokens_max, limits.longest_request_tokens)


def check_prompt(prompt: Sequence[TokenId], limits: EngineLimits, *, param: str) -> None:
    """Raises `ApiError` for a prompt that is empty, too long, or holds ids outside the vocabulary."""
    if not prompt:
        raise ApiError(f"'{param}' is empty; at least one token is needed.", param=param, code="empty_prompt")
    # Some of the context must be left for at least one token of output.
    longest = min(limits.prompt_tokens_max, sequence_tokens_max(limits) - 1)
    if len(prompt) > longest:
        raise ApiError(
            f"The prompt has {len(prompt)} tokens; this server takes at most {longest} "
            f"(context {sequence_tokens_max(limits)}). Shorten it.",
            param=param,
            code="context_length_exceeded",
        )
    wrong = next((token for token in prompt if not 0 <= token < limits.vocab_size), None)
    if wrong is not None:
        raise ApiError(
            f"'{param}' holds token id {shown(wrong)}; this model's ids are 0 to {limits.vocab_size - 1}.",
            param=param,
            code="invalid_value",
        )


def output_bound(
    tokens_prompt: int, asked: int | None, *, limits: EngineLimits, default: int | None, param: str = "max_tokens"
) -> Tokens:
    """The most tokens that a sequence may draw.

    Args:
        tokens_prompt: length of the prompt, checked by `check_prompt`.
        asked: what the client wants, if it said so.
        limits: the engine's.
        default: what it gets otherwise, as far as it fits; None for all that fits.
        param: the field it said so in.

    Raises:
        ApiError: what was asked for does not fit.
    """
    rest = sequence_tokens_max(limits) - tokens_prompt
    if asked is None:
        fits = min(rest, limits.output_tokens_max)
        return Tokens(fits if default is None else min(default, fits))
    if asked > limits.output_tokens_max:
        raise ApiError(
            f"'{param}' is {shown(asked)}; this server draws at most {limits.output_tokens_max} tokens per output.",
            param=param,
            code="invalid_value",
        )
    if asked > rest:
        raise ApiError(
            f"The context is {sequence_tokens_max(limits)} tokens, and {tokens_prompt + asked} were asked for: "
            f"{tokens_prompt} in the prompt and {asked} for the output. Shorten the prompt or lower {param}.",
            param=param,
            code="context_length_exceeded",
        )
    return Tokens(asked)


def check_choices(prompts: int, n: int, choices_max: int, limits: EngineLimits) -> None:
    """Raises `ApiError` when a request asks for more sequences than are let in at once."""
    most = min(choices_max, limits.sequences_max + limits.waiting_max)
    if prompts * n > most:
        raise ApiError(
            f"{prompts} prompts with n={n} make {prompts * n} sequences; at most {most} may be asked for at once.",
            param="n",
            code="invalid_value",
        )
