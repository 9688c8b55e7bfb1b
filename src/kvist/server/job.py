"""What one HTTP request asks for, in the engine's words; made by `translate`, carried out by `reply`."""

from dataclasses import dataclass

from kvist.base.units import Tokens
from kvist.engine.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The sequences of one request and how to answer.

    Attributes:
        requests: one per choice, in the order of their indices; the choices of one prompt stand together.
        n: choices per prompt.
        stops: strings that end each text.
        streams: answer as a stream of events.
        includes_usage: whether a stream ends with the usage.
    """

    requests: tuple[Request, ...]
    n: int
    stops: tuple[str, ...]
    streams: bool
    includes_usage: bool

    @property
    def tokens_prompt(self) -> Tokens:
        """Tokens of all prompts, each counted once however many choices it has."""
        return Tokens(sum(len(request.prompt) for request in self.requests[:: self.n]))
