"""OpenAI's and vLLM's parameters that are not honoured here: taken at a value that changes nothing, else refused.

Law: a parameter that is accepted is honoured. So a request that was written for another server runs unchanged
where that is true to its meaning, and is told by name what to leave out where it is not.
"""

from typing import Any

from kvist.server.errors import ApiError, shown

Neutral = dict[str, tuple[object, ...]]
"""By the name of a parameter: its values that ask for nothing. Null asks for nothing everywhere."""

_ANY_ENDPOINT: Neutral = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "echo": (False,),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_special_tokens": (True,),
    "return_token_ids": (False,),
    "prompt_logprobs": (),
    "priority": (0,),
    "response_format": ({"type": "text"},),
    "kv_transfer_params": (),
}

CHAT: Neutral = _ANY_ENDPOINT | {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "prompt_cache_retention": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
}

COMPLETION: Neutral = _ANY_ENDPOINT | {"suffix": ("",)}

LABELS: dict[str, type] = {"user": str, "safety_identifier": str, "metadata": dict}
"""These say something about a request and ask for nothing; no record is kept here that would hold them."""


def without_neutral(given: dict[str, Any], table: Neutral) -> dict[str, Any]:
    """The parameters that remain when labels and those of the table are taken out.

    Raises:
        ApiError: one of them asks for something.
    """
    for name in given.keys() & table.keys():
        if given[name] is not None and not _is_among(given[name], table[name]):
            raise ApiError(
                f"'{name}' is not supported here: {shown(given[name])} would not be honoured. Leave it out.",
                param=name,
                code="unsupported_parameter",
            )
    for name in given.keys() & LABELS.keys():
        if given[name] is not None and not isinstance(given[name], LABELS[name]):
            kind = "a string" if LABELS[name] is str else "an object"
            raise ApiError(f"'{name}' should be {kind}, not {shown(given[name])}.", param=name, code="invalid_value")
    return {name: value for name, value in given.items() if name not in table and name not in LABELS}


def _is_among(value: object, neutral: tuple[object, ...]) -> bool:
    # By type too: to Python, 0 equals False and 1 equals True.
    return any(value == each and isinstance(value, bool) is isinstance(each, bool) for each in neutral)
