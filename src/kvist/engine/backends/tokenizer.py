"""A model's own tokenizer, from the files in its directory and from nowhere else.

Knows how text becomes token ids and back, how a conversation is laid out, and which tokens end a turn. Runs no code
of the model: templates are evaluated in transformers' sandbox, other code is refused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from kvist.base.errors import ModelError, RequestError
from kvist.base.ids import TokenId
from kvist.engine.backends.foreign import translated

_TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a template may raise over messages it was not written for."""

_STOP_FILES = ("generation_config.json", "config.json")


class HfTokenizer:
    """Speaks a model's language; implements the server's Tokenizer. One thread at a time may call it."""

    def __init__(self, backend: PreTrainedTokenizerBase, stop_tokens: frozenset[TokenId]) -> None:
        self._backend = backend
        self._stop_tokens = stop_tokens

    @property
    def stop_tokens(self) -> frozenset[TokenId]:
        """Token ids that end a turn or a text."""
        return self._stop_tokens

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` works for this model."""
        template = self._backend.chat_template
        return "default" in template if isinstance(template, dict) else bool(template)

    def encode(self, text: str) -> list[TokenId]:
        """Token ids of a text, with the special tokens that the model expects before it.

        Raises:
            RequestError: the text holds halves of surrogate pairs, which no encoding can write.
        """
        _check_unicode(text, param="prompt")
        return [TokenId(token) for token in self._backend.encode(text, verbose=False)]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[TokenId]:
        """Token ids of a conversation, ready for the assistant's next turn.

        The template writes every special token itself, so none is added to what it wrote.

        Args:
            messages: mappings with "role" and "content".

        Raises:
            RequestError: the model has no chat template, or the template rejects the messages.
        """
        if not self.has_chat_template:
            raise RequestError(
                "this model has no chat template, it only continues texts; use /v1/completions", param="messages"
            )
        for value in (str(value) for message in messages for value in message.values()):
            _check_unicode(value, param="messages")
        try:
            text = self._backend.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
            )
        except _TEMPLATE_ERRORS as error:
            raise RequestError(f"the model's chat template rejects the messages: {error}", param="messages") from error
        tokens = self._backend.encode(str(text), add_special_tokens=False, verbose=False)
        return [TokenId(token) for token in tokens]

    def decode(self, tokens: Sequence[TokenId], *, special: bool = False) -> str:
        """Text of token ids; special tokens are left out unless asked for.

        Raises:
            RequestError: a number that can be no token id of any model; ids that this model lacks have no text.
        """
        wanted = [int(token) for token in tokens]
        try:
            text = self._backend.decode(wanted, skip_special_tokens=not special, clean_up_tokenization_spaces=False)
        except OverflowError as error:
            raise RequestError(f"{min(wanted)}..{max(wanted)} are not all token ids: {error}") from error
        return str(text)


def load_tokenizer(directory: Path) -> HfTokenizer:
    """Loads the tokenizer of a model's directory; reads no other place and opens no connection.

    Raises:
        ModelError: files are missing or damaged, or the tokenizer would need code of the model's own.
    """
    with translated(f"the tokenizer in {directory} can not be loaded"):
        backend = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    stop = {TokenId(token) for name in _STOP_FILES for token in _stop_tokens_in(directory / name)}
    if isinstance(backend.eos_token_id, int):
        stop.add(TokenId(backend.eos_token_id))
    return HfTokenizer(backend, frozenset(stop))


def _stop_tokens_in(path: Path) -> Iterator[int]:
    """Token ids that a configuration file names as ends; none when there is no such file."""
    if not path.exists():
        return
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} can not be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} holds no JSON object")
    text_config = config.get("text_config")
    for part in (config, text_config if isinstance(text_config, dict) else {}):
        named = part.get("eos_token_id")
        for token in named if isinstance(named, list) else [named]:
            if token is None:
                continue
            if type(token) is not int or token < 0:
                raise ModelError(f"{path} names {token!r} as eos_token_id, which is no token id")
            yield token


def _check_unicode(text: str, *, param: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = text[error.start]
        raise RequestError(
            f"{param} holds {found!a} at character {error.start}, half of a surrogate pair, which is no text",
            param=param,
        ) from error
