"""The parts that both endpoints' answers are made of: a choice as it came out, the frame around it, the usage."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvist.engine.messages import FinishReason
from kvist.server.choice import Choice, Piece
from kvist.server.explain import explained
from kvist.server.job import Job
from kvist.server.logprobs import DrawnScore


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole choice."""

    index: int
    text: str
    scores: tuple[DrawnScore, ...] | None
    finish: FinishReason


def joined(pieces: Sequence[Piece]) -> Answer:
    """All pieces of one choice as one; the last one carries the end."""
    scores = [score for piece in pieces for score in piece.scores or ()]
    last = pieces[-1]
    assert last.finish is not None, f"choice {last.index} has no last piece"
    return Answer(
        index=last.index,
        text="".join(piece.text for piece in pieces),
        scores=None if last.scores is None else tuple(scores),
        finish=last.finish,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What sets the answers of one endpoint apart.

    Attributes:
        id_prefix: of the answer's id.
        whole: `object` of an answer in one response.
        chunk: `object` of each part of a stream.
        choice: an entry of `choices` in one response.
        delta: an entry of `choices` in a stream; told whether it is the first of its choice.
    """

    id_prefix: str
    whole: str
    chunk: str
    choice: Callable[[Answer], dict[str, Any]]
    delta: Callable[[Piece, bool], dict[str, Any]]


def usage(job: Job, choices: Sequence[Choice], *, explains: bool) -> dict[str, Any]:
    """What an answer cost, in tokens.

    Each prompt counts once, and its cached tokens are those of its first choice: the others find the rest of the
    prompt in the cache only because the first one put it there. `kvist` is there for those who ask why.
    """
    firsts = choices[:: job.n]
    tokens_cached = sum(choice.tokens_cached for choice in firsts)
    tokens_output = sum(choice.tokens_output for choice in choices)
    shown: dict[str, Any] = {
        "prompt_tokens": job.tokens_prompt,
        "completion_tokens": tokens_output,
        "total_tokens": job.tokens_prompt + tokens_output,
        "prompt_tokens_details": {"cached_tokens": tokens_cached},
    }
    if explains:
        shown["kvist"] = {
            "tokens_cached": tokens_cached,
            "tokens_computed": job.tokens_prompt - tokens_cached,
            "prefix_end": firsts[0].prefix_end,
            **explained([source for choice in firsts for source in choice.sources], firsts[0].decision),
        }
    return shown
