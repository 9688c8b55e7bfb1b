"""Text of a growing output, handed out as soon as it is final.

Knows that a character may be spread over several tokens and that a token's text may depend on the one before it
(a leading space); does not know any vocabulary: all it uses is `decode`, which shows an unfinished or invalid
character as U+FFFD.

Laws:
    * What was handed out never changes.
    * The parts joined are the decoded whole: exactly so where tokens are bytes (byte-level BPE). A tokenizer with
      byte fallback decodes a run of byte tokens that has one wrong byte to nothing but U+FFFD; of such a run, the
      characters that are valid by themselves may be handed out as such.
    * A token costs the decoding of a bounded number of tokens, whatever came before it.

        context      pending
    [ t t t t t ] [ t t t ]       decode(context + pending) = shown + held
    └─────── shown ────┘└ held    held is all U+FFFD: characters that the next tokens may finish
"""

from collections.abc import Callable, Sequence

from kvist.base.ids import TokenId

Decode = Callable[[Sequence[TokenId]], str]

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
CONTEXT_TOKENS = 8
"""Tokens already handed out that are decoded again, so that the next one keeps its leading space."""

PENDING_MAX = 8
UNFINISHED_TOKENS_MAX = 3
"""A character has at most four bytes and a token at least one, so no more tokens than this can lack their end."""


class Detokeniser:
    """The text of one output, token by token."""

    def __init__(self, decode: Decode, context: Sequence[TokenId] = ()) -> None:
        """Starts behind `context`, the tokens before the output, of which the last few are used.

        Without them the first word of an output would lose its leading space with some tokenizers.
        """
        self._decode = decode
        self._context: list[TokenId] = []
        self._pending: list[TokenId] = []
        self._shown = ""
        for begin in range(-min(len(context), CONTEXT_TOKENS), 0):
            shown = decode(context[begin:])
            if shown and UNFINISHED not in shown:
                # Whole characters; a context that ends within one would not tell where the output's text begins.
                self._context, self._shown = list(context[begin:]), shown
                break
        self._text = self._shown

    def push(self, token: TokenId) -> str:
        """Takes the next token; returns the text that became final with it, often of this token alone."""
        pending = [*self._pending, token]
        text = self._decode_after_context(pending)
        if self._pending and text == self._text and not self._decode([token]):
            return ""  # a special token within a character: it has no text, and may come any number of times
        self._pending, self._text = pending, text
        if not text.endswith(UNFINISHED):
            return self._settle()
        if len(pending) >= PENDING_MAX:
            return self._move_on()
        return self._show(text.rstrip(UNFINISHED))

    def finish(self) -> str:
        """Returns what is left; an unfinished character shows as U+FFFD."""
        return self._show(self._text)

    def _decode_after_context(self, tokens: list[TokenId]) -> str:
        text = self._decode(self._context + tokens)
        if text.startswith(self._shown):
            return text
        # Byte fallback took back characters that were handed out: they stay, and are decoded no more.
        self._context, self._shown = [], ""
        return self._decode(tokens)

    def _show(self, text: str) -> str:
        fresh = text[len(self._shown) :]
        if fresh:
            self._shown = text
        return fresh

    def _settle(self) -> str:
        """Hands out everything: no character is unfinished, so the pending tokens become context."""
        fresh = self._show(self._text)
        if fresh or not self._shown:
            self._context, self._shown = self._context_after(self._text)
        self._pending, self._text = [], self._shown
        return fresh

    def _context_after(self, text: str) -> tuple[list[TokenId], str]:
        """The last few tokens whose own text is how `text` ends: a cut within a run of byte tokens reads otherwise."""
        tokens = self._context + self._pending
        for begin in range(max(0, len(tokens) - CONTEXT_TOKENS), len(tokens)):
            shown = self._decode(tokens[begin:])
            if text.endswith(shown) and (shown or not text):
                return tokens[begin:], shown
        return self._pending, self._decode(self._pending)

    def _move_on(self) -> str:
        """Hands out what the last few pending tokens can not change, and forgets all before them.

        Cut off from their beginning, those tokens may show U+FFFD for the rest of a character that was finished;
        what both readings have in common at the end is what is held.
        """
        tail = self._pending[-UNFINISHED_TOKENS_MAX:]
        tail_text = self._decode(tail)
        held = min(_unfinished(self._text[len(self._shown) :]), _unfinished(tail_text))
        fresh = self._show(self._text[: len(self._text) - held])
        self._context, self._pending, self._text = [], tail, tail_text
        self._shown = tail_text[: len(tail_text) - held]
        return fresh


def _unfinished(text: str) -> int:
    return len(text) - len(text.rstrip(UNFINISHED))
