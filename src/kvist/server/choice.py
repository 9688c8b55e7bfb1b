"""One sequence of an answer: from the engine's events to pieces of text.

Knows tokens, text and where the text ends; does not know HTTP, nor who waits for the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.base.units import Tokens
from kvist.engine.messages import Admitted, Finished, FinishReason, TokenDrawn
from kvist.engine.request import Request
from kvist.fabric.messages import Decision, Source
from kvist.server.detokeniser import Detokeniser
from kvist.server.logprobs import DrawnScore, TokenTexts
from kvist.server.ports import Tokenizer
from kvist.server.stops import StopStrings


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """More of one choice.

    Attributes:
        index: of the choice in the answer.
        text: may be empty, in the last piece.
        scores: of the tokens since the last piece; None when they were not asked for.
        finish: why the choice ended with this piece; None if it goes on.
    """

    index: int
    text: str
    scores: tuple[DrawnScore, ...] | None
    finish: FinishReason | None = None


class Choice:
    """The text of one sequence, piece by piece.

    Attributes:
        index: of the choice in the answer.
        request: what the engine was asked for.
        tokens_output: tokens that the output is made of, the one that ended it included.
        tokens_cached: prompt tokens that came from the cache; 0 until admitted.
        prefix_end: why it was no more than that; empty until admitted.
        sources: where those tokens came from; decision: what else was possible, None where no tier was asked.
    """

    def __init__(
        self, index: int, request: Request, stops: Sequence[str], tokenizer: Tokenizer, texts: TokenTexts
    ) -> None:
        self.index = index
        self.request = request
        self.tokens_output = Tokens(0)
        self.tokens_cached = Tokens(0)
        self.prefix_end = ""
        self.sources: tuple[Source, ...] = ()
        self.decision: Decision | None = None
        self._detokeniser = Detokeniser(tokenizer.decode, request.prompt)
        self._stops = StopStrings(stops)
        self._texts = texts
        self._characters = 0
        self._scores: list[DrawnScore] | None = None if request.sampling.logprobs is None else []

    def admit(self, event: Admitted) -> None:
        """Notes what the cache gave."""
        self.tokens_cached = event.tokens_cached
        self.prefix_end = event.prefix_end
        self.sources = event.sources
        self.decision = event.decision

    def push(self, event: TokenDrawn) -> Piece | None:
        """Takes one token; returns the text it made final, if any, and the end if it completed a stop string."""
        self.tokens_output = Tokens(self.tokens_output + 1)
        if self._scores is not None:
            self._scores.append(self._texts.scores(event, text_offset=self._characters))
        if event.token in self.request.stop_tokens:
            return None  # it says that the text ends, and is no part of it
        fresh = self._detokeniser.push(event.token)
        self._characters += len(fresh)
        text, stopped = self._stops.push(fresh)
        return self._piece(text, "stop" if stopped else None) if text or stopped else None

    def finish(self, event: Finished) -> Piece:
        """Takes the end; returns what was held back, with the reason."""
        text, stopped = self._stops.push(self._detokeniser.finish())
        if stopped:
            return self._piece(text, "stop")
        return self._piece(text + self._stops.finish(), event.reason)

    def _piece(self, text: str, finish: FinishReason | None) -> Piece:
        scores = None if self._scores is None else tuple(self._scores)
        if self._scores:
            self._scores = []
        return Piece(index=self.index, text=text, scores=scores, finish=finish)
