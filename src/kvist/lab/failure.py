"""What can go wrong with one call to a server, by kind, so that a run can count it.

connect        nobody answers at that address
timeout        no complete answer within the time allowed
disconnected   the server closed the connection before the answer was complete
http_NNN       an HTTP status other than 200
stream_error   the server reported an error inside the stream
truncated      the stream ended without an end mark or a finish reason
malformed      not HTTP, not an event stream, not JSON, or not of OpenAI's shape
oversized      more than any honest answer holds
empty          a complete answer without a single token
"""

from kvist.base.errors import WireError


class CallError(WireError):
    """One call to a server failed.

    Attributes:
        kind: a word from the module's list.
        status: the HTTP status, when the server answered with one other than 200.
    """

    def __init__(self, message: str, *, kind: str, status: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status


def excerpt(text: str, length: int = 300) -> str:
    r"""A foreign text made fit for one line of an error message: printable, and not longer than `length`.

    >>> excerpt("a\x1b[2Jb\nc", 6)
    'a [2Jb...'
    """
    line = "".join(character if character.isprintable() else " " for character in text[: length + 1])
    return line[:length] + "..." if len(line) > length else line.strip()
