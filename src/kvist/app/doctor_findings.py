"""What an examination says: one sentence each, and what to do where something is not as it should be."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "note", "problem"]

_TEXT_MAX = 1000
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: what it was: "vllm", "hashes", "transfer", "config", "memory", "secret", "model", "sizes", "server", or a
            tier as "tier disk".
        status: "ok"; "note" for what an operator should know; "problem" for what keeps vLLM from starting or the cache
            from being of use.
        text: what was found.
        remedy: what to do; empty where there is nothing to do.
    """

    check: str
    status: Status
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    """Something is as it should be."""
    return Finding(check=check, status="ok", text=_plain(text))


def note(check: str, text: str, remedy: str = "") -> Finding:
    """Something is not wrong, and should be known."""
    return Finding(check=check, status="note", text=_plain(text), remedy=_plain(remedy))


def problem(check: str, text: str, remedy: str = "") -> Finding:
    """Something is wrong."""
    return Finding(check=check, status="problem", text=_plain(text), remedy=_plain(remedy))


def shown(value: object, longest: int = 80) -> str:
    """A value that somebody gave, as part of a sentence.

    >>> shown("kv_both"), shown("x" * 9, longest=4)
    ("'kv_both'", "'xxxx...'")
    """
    if isinstance(value, str):
        return repr(value if len(value) <= longest else f"{value[:longest]}...")
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}..."


def _plain(text: str) -> str:
    """On one line, without characters that a terminal would obey: files and servers wrote parts of it."""
    line = " ".join(text[: 4 * _TEXT_MAX].split())
    return "".join(letter if letter.isprintable() else _REPLACEMENT for letter in line)[:_TEXT_MAX]
