"""Log probabilities as clients see them: tokens as text and bytes, in the shapes of both endpoints.

Knows OpenAI's two shapes; does not know how the numbers came about.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvist.base.ids import TokenId
from kvist.engine.messages import TokenDrawn
from kvist.server.detokeniser import UNFINISHED
from kvist.server.ports import Tokenizer

LOGPROB_MIN = -9999.0
"""What OpenAI sends for a token that can not be: JSON has no infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token as text.

    Attributes:
        text: special tokens by their name; U+FFFD for each part of a character that other tokens complete.
        utf8: its bytes, or None where the text does not tell them.
    """

    text: str
    utf8: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A token and the natural logarithm of its probability."""

    token: Token
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnScore:
    """A drawn token beside those it was drawn from.

    Attributes:
        drawn: the token that was drawn.
        top: the most likely ones, best first.
        text_offset: where in the output's text it begins, in characters.
    """

    drawn: Score
    top: tuple[Score, ...]
    text_offset: int


class TokenTexts:
    """The texts of single tokens, each asked of the tokenizer once; at most one entry per vocabulary entry."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[TokenId, Token] = {}

    def of(self, token: TokenId) -> Token:
        """The token's own text, with its leading space."""
        known = self._known.get(token)
        if known is None:
            text = self._decode(token)
            known = Token(text=text, utf8=None if UNFINISHED in text else text.encode())
            self._known[token] = known
        return known

    def _decode(self, token: TokenId) -> str:
        # Some decoders drop the space before the first word of a text: the second of two keeps it.
        once = self._tokenizer.decode([token], special=True)
        twice = self._tokenizer.decode([token, token], special=True)
        return twice[len(once) :] if twice.startswith(once) else once

    def scores(self, drawn: TokenDrawn, *, text_offset: int) -> DrawnScore:
        """The scores that came with a token."""
        return DrawnScore(
            drawn=self._score(drawn.token, LOGPROB_MIN if drawn.logprob is None else drawn.logprob),
            top=tuple(self._score(token, logprob) for token, logprob in drawn.top),
            text_offset=text_offset,
        )

    def _score(self, token: TokenId, logprob: float) -> Score:
        return Score(token=self.of(token), logprob=max(logprob, LOGPROB_MIN))


def chat_logprobs(scores: Sequence[DrawnScore] | None) -> dict[str, Any] | None:
    """`choices[].logprobs` of a chat completion."""
    if scores is None:
        return None
    content = [_chat_score(each.drawn) | {"top_logprobs": [_chat_score(top) for top in each.top]} for each in scores]
    return {"content": content, "refusal": None}


def _chat_score(score: Score) -> dict[str, Any]:
    utf8 = score.token.utf8
    return {"token": score.token.text, "logprob": score.logprob, "bytes": None if utf8 is None else list(utf8)}


def completion_logprobs(scores: Sequence[DrawnScore] | None) -> dict[str, Any] | None:
    """`choices[].logprobs` of a completion; the drawn token is always among the top ones, as at OpenAI."""
    if scores is None:
        return None
    return {
        "tokens": [each.drawn.token.text for each in scores],
        "token_logprobs": [each.drawn.logprob for each in scores],
        "top_logprobs": [_by_text(each) for each in scores],
        "text_offset": [each.text_offset for each in scores],
    }


def _by_text(each: DrawnScore) -> dict[str, float]:
    # Best first, and the drawn token last: of two tokens with one text, the likelier is shown.
    found: dict[str, float] = {}
    for score in (*each.top, each.drawn):
        found.setdefault(score.token.text, score.logprob)
    return found
