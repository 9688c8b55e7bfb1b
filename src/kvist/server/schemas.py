"""The two request bodies, field by field: types and ranges that can be told without a model.

Knows what clients may write; `translate` turns it into what the engine understands. Types are strict: no number is
read from a string, no boolean passes for a number, nothing unknown passes at all.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError

from kvist.base.ids import TokenId
from kvist.server.errors import ApiError, shown

N_MAX = 128
TOP_LOGPROBS_MAX = 20
STOPS_MAX = 4
STOP_CHARACTERS_MAX = 1000
LABEL_CHARACTERS_MAX = 256
NAME_CHARACTERS_MAX = 100
"""Clients invent parameters, and this much of a name is enough to find it."""

Model = TypeVar("Model", bound=BaseModel)


def _stops(value: object) -> object:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > STOPS_MAX:
        raise ValueError(f"may hold at most {STOPS_MAX} strings, not {len(stops)}")
    if any(not 0 < len(stop) <= STOP_CHARACTERS_MAX for stop in stops):
        raise ValueError(f"must hold strings of 1 to {STOP_CHARACTERS_MAX} characters")
    return stops


def _all_texts(value: list[object]) -> bool:
    return all(isinstance(item, str) for item in value)


def _is_token_list(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _prompts(value: object) -> object:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and _is_token_list(value):
        return [value]
    if isinstance(value, list) and not 0 < len(value) <= N_MAX:
        # Before a look at each: millions of them fit into a body.
        raise ValueError(f"must be a text, a list of token ids, or a list of 1 to {N_MAX} such, not {len(value)}")
    if not isinstance(value, list) or not (_all_texts(value) or all(map(_is_token_list, value))):
        raise ValueError("must be a text, a list of texts, a list of token ids, or a list of such lists")
    return value


def _text_of_parts(value: object) -> object:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a text or a list of text parts")  # noqa: TRY004  # pydantic reads ValueError alone
    for part in value:
        if not isinstance(part, dict) or part.keys() != {"type", "text"} or part["type"] != "text":
            raise ValueError('holds a part other than {"type": "text", "text": ...}; this model takes text alone')
        if not isinstance(part["text"], str):
            raise ValueError("holds a text part whose text is not a string")  # noqa: TRY004  # as above
    return "".join(part["text"] for part in value)


def _nothing(value: object) -> None:
    if value:
        raise ValueError("is not supported by this server; leave it out")


Text = Annotated[str, BeforeValidator(_text_of_parts)]
Nothing = Annotated[None, BeforeValidator(_nothing)]
Stops = Annotated[list[str], BeforeValidator(_stops)]
Prompts = Annotated[list[str] | list[list[TokenId]], PlainValidator(_prompts)]
Label = Annotated[str, Field(min_length=1, max_length=LABEL_CHARACTERS_MAX)]
Positive = Annotated[int, Field(ge=1)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class StreamOptions(_Body):
    """What else a stream carries."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class GenerationBody(_Body):
    """What both endpoints take.

    Attributes:
        prompt_cache_key: says which requests share a prefix, for whoever chooses between engines; with one engine
            there is nothing to choose, and its cache finds shared prefixes without being told.
        cache_salt: the tenant: requests with different salts never share cached blocks.
        ignore_eos: go on after a stop token, up to the bound.
    """

    model: str
    n: Annotated[int, Field(ge=1, le=N_MAX)] | None = None
    stop: Stops | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Positive | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_cache_key: Label | None = None
    cache_salt: Label | None = None
    ignore_eos: bool | None = None


class Message(_Body):
    """One turn of a conversation; the fields after `content` are what clients send back of an earlier answer."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text
    name: Nothing = None
    refusal: Nothing = None
    annotations: Nothing = None
    audio: Nothing = None
    function_call: Nothing = None
    tool_calls: Nothing = None


class ChatBody(GenerationBody):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS_MAX)] | None = None


class CompletionBody(GenerationBody):
    """Body of `/v1/completions`; `prompt` becomes a list, whichever of its four forms was sent."""

    prompt: Prompts
    best_of: Positive | None = None
    logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS_MAX)] | None = None


def validated(schema: type[Model], given: dict[str, Any]) -> Model:
    """Reads a body.

    Raises:
        ApiError: 400 that names the first field at fault.
    """
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        raise _named(error) from None


def _named(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False)[0]
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")[
        :NAME_CHARACTERS_MAX
    ]
    match first["type"]:
        case "extra_forbidden":
            return ApiError(f"'{name}' is not a parameter of this endpoint.", param=name, code="unknown_parameter")
        case "missing":
            return ApiError(f"'{name}' is required.", param=name, code="missing_required_parameter")
        case "value_error":
            return ApiError(f"'{name}' {first['ctx']['error']}.", param=name, code="invalid_value")
    # "Input should be ...", "List should have at least 1 item after validation, not 0"
    reason = first["msg"].partition("should ")[2].partition(" after validation")[0]
    return ApiError(f"'{name}' should {reason}, not {shown(first['input'])}.", param=name, code="invalid_value")
