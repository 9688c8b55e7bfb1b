"""A streamed answer of an OpenAI-compatible server, read event by event and timed; pure.

Knows the shapes of `/v1/completions` and `/v1/chat/completions`. Takes the time of each chunk as a number, so it
needs no clock. What a token event is: for completions, each event with a choice (its text may be empty: half a
character, or a special token); for chats, each event with text. The closing event, which carries a finish reason
and no text, counts as a token only when none came before it.
"""

import json
from dataclasses import dataclass
from typing import Literal

from kvist.lab.failure import CallError, excerpt
from kvist.lab.sse import SseEvent, SseParser

Endpoint = Literal["completions", "chat/completions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens as the server counts them.

    Attributes:
        prompt_tokens: length of the prompt.
        output_tokens: length of the answer.
        cached_tokens: prompt tokens that came from its cache; None when it does not say.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One complete answer.

    Attributes:
        text: all of it.
        started_s: when the request was about to be sent, on the clock that timed the chunks.
        token_times_s: when each token event arrived, counted from `started_s`; at least one.
        latency_s: when the answer was complete, counted likewise.
        finish_reason: the server's word for why it ended; None when it gave none.
        usage: token counts; None when the server sent none.
    """

    text: str
    started_s: float
    token_times_s: tuple[float, ...]
    latency_s: float
    finish_reason: str | None
    usage: Usage | None

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.token_times_s[0]

    @property
    def output_tokens(self) -> int:
        """Length of the answer, by the server's count or else by its events."""
        return self.usage.output_tokens if self.usage else len(self.token_times_s)


class AnswerReader:
    """Collects one streamed answer."""

    def __init__(self, endpoint: Endpoint, *, started_s: float, token_events_max: int) -> None:
        self._endpoint = endpoint
        self._started_s = started_s
        self._token_events_max = token_events_max
        self._parser = SseParser()
        self._texts: list[str] = []
        self._times_s: list[float] = []
        self._finish_reason: str | None = None
        self._usage: Usage | None = None
        self._done_s: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether the end mark was read; later bytes are ignored."""
        return self._done_s is not None

    def feed(self, chunk: bytes, now_s: float) -> None:
        """Takes in the bytes that arrived at a time.

        Raises:
            CallError: "stream_error", "malformed" or "oversized".
        """
        if self.is_done:
            return
        for event in self._parser.feed(chunk):
            if event.data.strip() == "[DONE]":
                self._done_s = now_s
                return
            self._read(event, now_s)

    def finish(self, now_s: float) -> Answer:
        """The answer, once the stream has ended.

        Raises:
            CallError: "truncated" or "empty".
        """
        if self._done_s is None and self._finish_reason is None:
            raise CallError(
                f"the stream ended after {len(self._times_s)} tokens without a finish reason and without [DONE]",
                kind="truncated",
            )
        if not self._times_s:
            raise CallError("the stream is complete and holds no token", kind="empty")
        return Answer(
            text="".join(self._texts),
            started_s=self._started_s,
            token_times_s=tuple(self._times_s),
            latency_s=(now_s if self._done_s is None else self._done_s) - self._started_s,
            finish_reason=self._finish_reason,
            usage=self._usage,
        )

    def _read(self, event: SseEvent, now_s: float) -> None:
        body = _json_object(event.data)
        if event.name == "error" or body.get("error") is not None:
            raise CallError(f"the server reports: {error_text(body) or excerpt(event.data)}", kind="stream_error")
        if body.get("usage") is not None:
            self._usage = read_usage(body["usage"])
        choices = body.get("choices", [])
        if not isinstance(choices, list):
            raise _malformed("choices is not a list", event.data)
        if choices:
            self._read_choice(choices[0], now_s, event.data)

    def _read_choice(self, choice: object, now_s: float, data: str) -> None:
        if not isinstance(choice, dict):
            raise _malformed("a choice is not an object", data)
        text, reason = _choice_text(choice, self._endpoint, data), choice.get("finish_reason")
        is_token = bool(text) or (reason is None and self._endpoint == "completions")
        if is_token or (reason is not None and not self._times_s):
            self._times_s.append(now_s - self._started_s)
            self._texts.append(text)
        if len(self._times_s) > self._token_events_max:
            raise CallError(f"the server sent more than {self._token_events_max:,} tokens", kind="oversized")
        if reason is not None:
            self._finish_reason = excerpt(str(reason), 40)


def read_usage(usage: object) -> Usage:
    """Token counts out of a `usage` object.

    Raises:
        CallError: "malformed": a count is missing, no whole number, negative or contradicts another.
    """
    if not isinstance(usage, dict):
        raise _malformed("usage is not an object", repr(usage))
    prompt, output = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    details = usage.get("prompt_tokens_details")
    cached = None
    if isinstance(details, dict) and details.get("cached_tokens") is not None:
        cached = _count(details, "cached_tokens")
        if cached > prompt:
            raise _malformed(f"usage has {cached} of {prompt} prompt tokens from cache", json.dumps(usage))
    return Usage(prompt_tokens=prompt, output_tokens=output, cached_tokens=cached)


def error_text(body: dict[str, object]) -> str:
    """The message within an error body of OpenAI's shape or one of its relatives; empty when there is none.

    >>> error_text({"error": {"message": "too long"}}), error_text({"detail": "Not Found"}), error_text({})
    ('too long', 'Not Found', '')
    """
    error = body.get("error", body.get("detail", body.get("message")))
    if isinstance(error, dict):
        error = error.get("message")
    return "" if error is None else excerpt(str(error))


def _choice_text(choice: dict[str, object], endpoint: Endpoint, data: str) -> str:
    if endpoint == "completions":
        text = choice.get("text")
    else:
        delta = choice.get("delta")
        text = delta.get("content") or delta.get("reasoning_content") if isinstance(delta, dict) else None
    if text is not None and not isinstance(text, str):
        raise _malformed("the text of a choice is not a string", data)
    return text or ""


def _json_object(data: str) -> dict[str, object]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _malformed("an event is not JSON", data) from error
    if not isinstance(body, dict):
        raise _malformed("an event is not a JSON object", data)
    return body


def _count(counts: dict[str, object], name: str) -> int:
    value = counts.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 2**40:
        raise _malformed(f"usage.{name} is no count of tokens", json.dumps(counts))
    return value


def _malformed(problem: str, data: str) -> CallError:
    return CallError(f"{problem}: {excerpt(data) or 'nothing at all'}", kind="malformed")
