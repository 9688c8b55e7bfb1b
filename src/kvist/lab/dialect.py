"""Finds out how a server wants to be asked, once, before anything is measured.

Servers differ in three points of `/v1/completions`: whether a prompt may be token ids, whether they know
`ignore_eos` (an extension that keeps an answer going to its full length), and whether a stream may end with token
counts. The probe tries the richest form first and gives up one point at a time while the server answers 400 or
422. What was refused, and in which words, is kept for the report.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from kvist.base.errors import ConfigError
from kvist.lab.answer import Answer
from kvist.lab.client import Client, ServedModel
from kvist.lab.draw import Span
from kvist.lab.failure import CallError, excerpt

PromptForm = Literal["token ids", "text"]

_MAYBE_NO_LISTING = (404, 405, 501)
_REFUSED = (400, 422)

_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system",
    "program", "question", "work", "government", "number", "night", "point", "home", "water", "room", "mother",
    "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business",
    "issue", "side", "kind", "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end",
    "member", "law", "car",
)  # fmt: skip  # one word is not one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one server is asked.

    Attributes:
        prompt: whether prompts are sent as token ids or as text.
        ignore_eos: whether `ignore_eos` was accepted and is sent.
        usage: whether token counts at the end of a stream may be asked for.
        refusals: what the server said to richer forms, in the order tried.
    """

    prompt: PromptForm
    ignore_eos: bool
    usage: bool
    refusals: tuple[str, ...] = ()


class Completions:
    """Asks one model of one server for completions, in the server's dialect."""

    def __init__(self, client: Client, model: ServedModel, dialect: Dialect) -> None:
        self.client = client
        self.model = model
        self.dialect = dialect

    async def ask(self, prompt: Sequence[int], output_tokens: int) -> Answer:
        """The greedy continuation of a prompt of token ids.

        Raises:
            CallError: the call failed.
        """
        body: dict[str, object] = {
            "model": self.model.name,
            "prompt": list(prompt) if self.dialect.prompt == "token ids" else as_text(prompt),
            "max_tokens": output_tokens,
            "temperature": 0,
        }
        if self.dialect.ignore_eos:
            body["ignore_eos"] = True
        if self.dialect.usage:
            body["stream_options"] = {"include_usage": True}
        return await self.client.stream("completions", body, output_tokens=output_tokens)


async def choose_model(client: Client, name: str | None) -> ServedModel:
    """The model to ask: the named one, or the only one that the server lists.

    Raises:
        ConfigError: there is no such model, or several and none was named.
        CallError: the server cannot be asked.
    """
    try:
        models = await client.models()
    except CallError as error:
        if name is None or error.status not in _MAYBE_NO_LISTING:
            raise
        return ServedModel(name=name)
    listed = ", ".join(repr(excerpt(model.name, 80)) for model in models[:20]) or "no model"
    if name is None and len(models) == 1:
        return models[0]
    if name is None:
        raise ConfigError(f"{client.url} serves {listed}; name one with --model")
    for model in models:
        if model.name == name:
            return model
    raise ConfigError(f"{client.url} does not serve {name!r}; it serves {listed}")


async def negotiate(client: Client, model: ServedModel, token_ids: Span) -> Completions:
    """Asks a tiny question in ever plainer forms until the server takes one.

    Raises:
        CallError: it refuses even the plainest form, or fails in another way.
    """
    refusals: list[str] = []
    forms: tuple[PromptForm, ...] = ("token ids", "text")
    for prompt, usage, ignore_eos in product(forms, (True, False), (True, False)):
        dialect = Dialect(prompt=prompt, ignore_eos=ignore_eos, usage=usage)
        try:
            await Completions(client, model, dialect).ask((token_ids.low, token_ids.high), 1)
        except CallError as error:
            if error.status not in _REFUSED:
                raise
            refusals.append(str(error))
            last = error
        else:
            return Completions(client, model, replace(dialect, refusals=tuple(refusals)))
    raise last


def as_text(prompt: Sequence[int]) -> str:
    """One common English word per token id, for servers that take no ids.

    Nearly every vocabulary has these words, each with the space before it, as single tokens; so the length in
    tokens is about the number of ids, and what the server counts is what reports show.

    >>> as_text([0, 1, 64])
    'time year time'
    """
    return " ".join(_WORDS[token % len(_WORDS)] for token in prompt)
