"""What the server needs from the rest of Kvist: an engine to ask and a tokenizer to speak its language."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kvist.base.ids import RequestId, TokenId
from kvist.engine.messages import EngineLimits, EngineStatistics, Event
from kvist.engine.request import Request

Deliver = Callable[[Event], None]


class Engine(Protocol):
    """Generates sequences; every method may be called from any thread and returns at once."""

    @property
    def limits(self) -> EngineLimits:
        """Bounds fixed at start."""
        ...

    @property
    def fault(self) -> str | None:
        """Why it answers nobody any more, or None while it is well."""
        ...

    def submit(self, request: Request, deliver: Deliver) -> None:
        """Queues a request.

        `deliver` is called on one thread at a time (the engine's own, while it has one), in the order that
        `kvist.engine.messages` promises; it must not block and must not raise. Refusals come as events too, never
        as exceptions.
        """
        ...

    def abort(self, request_id: RequestId) -> None:
        """Ends a request in whatever state it is, within one step; unknown and ended ids are ignored."""
        ...

    def complete(self, request_id: RequestId) -> None:
        """Ends a request whose output is all that was wanted, as at a stop string, likewise.

        It counts as finished, not as aborted.
        """
        ...

    def statistics(self) -> EngineStatistics:
        """A consistent snapshot, taken after the latest completed step."""
        ...


class Tokenizer(Protocol):
    """Turns text into a model's token ids and back.

    `encode` and `encode_chat` are called from one thread at a time, which need not always be the same; `decode` is
    called from another thread at any time beside them, often, and must take microseconds. Encoding a long text
    should let other threads run.
    """

    @property
    def stop_tokens(self) -> frozenset[TokenId]:
        """Token ids that end a turn or a text."""
        ...

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` works for this model."""
        ...

    def encode(self, text: str) -> list[TokenId]:
        """Token ids of a text, with the special tokens that the model expects before it."""
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[TokenId]:
        """Token ids of a conversation, ready for the assistant's next turn.

        Args:
            messages: mappings with "role" and "content".

        Raises:
            RequestError: the model has no chat template, or the template rejects the messages.
        """
        ...

    def decode(self, tokens: Sequence[TokenId], *, special: bool = False) -> str:
        """Text of token ids; special tokens are left out unless asked for.

        Parts of a character whose other parts are missing show as U+FFFD, and nothing else is changed: the text of
        more tokens begins with the text of fewer, but for U+FFFD at its end.
        """
        ...
