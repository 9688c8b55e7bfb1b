"""A model's own tokenizer, from the files in its directory and from nowhere else.

Knows how text becomes token ids and back, how a conversation is laid out, and which tokens end a turn. Runs no code
of the model: templates are evaluated in transformers' sandbox, other code is refused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from kvist.base.errors import ModelError, RequestError
from kvist.base.ids import TokenId
from kvist.engine.backends.foreign import translated

_TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a template may raise over messages it was not written for."""

_STOP_FILES = ("generation_config.json", "config.json")


class HfTokenizer:
    """Speaks a model's language; implements the server's Tokenizer.

    Nothing is changed after construction, so any number of threads may call it at once. Encoding releases the
    interpreter's lock, decoding a few tokens takes microseconds and does not.
    """

    def __init__(self, loaded: PreTrainedTokenizerBase, fast: Tokenizer, stop_tokens: frozenset[TokenId]) -> None:
        """Wraps a loaded tokenizer.

        Args:
            loaded: knows the chat template.
            fast: the same vocabulary, without what transformers sets and resets around every call.
            stop_tokens: token ids that end a turn or a text.
        """
        self._loaded = loaded
        self._fast = fast
        self._stop_tokens = stop_tokens

    @property
    def stop_tokens(self) -> frozenset[TokenId]:
        """Token ids that end a turn or a text."""
        return self._stop_tokens

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` works for this model."""
        template = self._loaded.chat_template
        return "default" in template if isinstance(template, dict) else bool(template)

    def encode(self, text: str) -> list[TokenId]:
        """Token ids of a text, with the special tokens that the model expects before it.

        Raises:
            RequestError: the text holds halves of surrogate pairs, which no encoding can write.
        """
        _check_unicode(text, param="prompt")
        return self._tokens(text, special=True)

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
            text = self._loaded.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
            )
        except _TEMPLATE_ERRORS as error:
            raise RequestError(f"the model's chat template rejects the messages: {error}", param="messages") from error
        return self._tokens(str(text), special=False)

    def decode(self, tokens: Sequence[TokenId], *, special: bool = False) -> str:
        """Text of token ids; special tokens are left out unless asked for.

        Raises:
            RequestError: a number that can be no token id of any model; ids that this model lacks have no text.
        """
        try:
            return str(self._fast.decode(tokens, skip_special_tokens=not special))
        except OverflowError as error:
            raise RequestError(f"{min(tokens)}..{max(tokens)} are not all token ids: {error}") from error

    def _tokens(self, text: str, *, special: bool) -> list[TokenId]:
        # Of the ways to encode one text, only the one for many releases the interpreter's lock.
        (encoding,) = self._fast.encode_batch_fast([text], add_special_tokens=special)
        return [TokenId(token) for token in encoding.ids]


def load_tokenizer(directory: Path) -> HfTokenizer:
    """Loads the tokenizer of a model's directory; reads no other place and opens no connection.

    Raises:
        ModelError: files are missing or damaged, or the tokenizer would need code of the model's own.
    """
    with translated(f"the tokenizer in {directory} can not be loaded"):
        loaded = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
        fast = getattr(loaded, "backend_tokenizer", None)
        if not isinstance(fast, Tokenizer):
            raise ModelError(f"the tokenizer in {directory} is a {type(loaded).__name__}, which needs a tokenizer.json")
        fast.no_truncation()
        fast.no_padding()
    stop = {TokenId(token) for name in _STOP_FILES for token in _stop_tokens_in(directory / name)}
    if isinstance(loaded.eos_token_id, int):
        stop.add(TokenId(loaded.eos_token_id))
    return HfTokenizer(loaded, fast, frozenset(stop))


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
