"""Server-sent events out of a stream of bytes, however the network cut it; pure.

Follows the event stream format of the HTML standard: lines end in LF, CR or CRLF, a line that starts with a
colon is a comment, data lines of one event are joined by newlines, a blank line ends the event, and an event
that the stream's end cut off is not an event. Knows nothing of what the events say. A line or an event that
grows beyond its bound is an error, so that a broken server cannot fill this machine's memory.
"""

from dataclasses import dataclass

from kvist.lab.failure import CallError

EVENT_BYTES_MAX = 4 * 2**20
"""Bytes one line, or the data of one event, may have."""

_CR, _LF = b"\r", b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class SseEvent:
    """One event.

    Attributes:
        name: the event's type; "message" unless the server names another.
        data: its data lines, joined by newlines.
    """

    name: str
    data: str


class SseParser:
    """Turns chunks of one stream into events; to be used for a single stream."""

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._line = bytearray()
        self._after_cr = False
        self._at_start = True
        self._name = ""
        self._data: list[str] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Events that this chunk completes, in order.

        Raises:
            CallError: of kind "oversized", when a line or an event exceeds the bound.
        """
        events = []
        for piece in chunk.splitlines(keepends=True):  # bytes split at CR, LF and CRLF only
            if self._after_cr:
                self._after_cr = False
                if piece == _LF:  # the second half of a CRLF that the network cut
                    continue
            line = piece.rstrip(b"\r\n")
            self._line += line
            self._bound(len(self._line))
            if len(line) == len(piece):
                continue
            self._after_cr = piece.endswith(_CR)
            event = self._end_line()
            if event is not None:
                events.append(event)
        return events

    def _end_line(self) -> SseEvent | None:
        """Takes in the line just completed; an event when it was the blank one that ends it."""
        line = self._line.decode("utf-8", errors="replace")
        self._line.clear()
        if self._at_start:
            self._at_start = False
            line = line.removeprefix("\ufeff")
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data_bytes += len(value) + 1
            self._bound(self._data_bytes)
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None  # comments (an empty field name), ids, retry times and unknown fields say nothing to us

    def _dispatch(self) -> SseEvent | None:
        event = SseEvent(name=self._name or "message", data="\n".join(self._data)) if self._data else None
        self._name, self._data, self._data_bytes = "", [], 0
        return event

    def _bound(self, size: int) -> None:
        if size > self._event_bytes_max:
            raise CallError(f"an event of the stream is longer than {self._event_bytes_max:,} bytes", kind="oversized")
