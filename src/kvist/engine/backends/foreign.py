"""Where the exceptions of transformers, tokenizers, safetensors and gguf become Kvist's own.

Those libraries promise nothing about what they raise: a damaged `tokenizer.json` is a bare `Exception`, a full disk
while saving weights a `SafetensorError` that only mentions the number of the system's error.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from kvist.base.errors import KvistError, ModelError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of the operating system that mean: these bytes do not fit there."""

_MENTIONED = re.compile(r"\(os error (\d{1,3})\)")
_LENGTH_MAX = 300


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Runs foreign code about a model's files; whatever it raises becomes a ModelError that begins with `what`.

    Raises:
        OSError: there is no room for what was to be written; the caller knows how much was wanted, and where.
        ModelError: anything else; Kvist's own errors and MemoryError pass unchanged.
    """
    try:
        yield
    except (KvistError, MemoryError):
        raise
    # The libraries raise bare Exception; this is the one place that catches it.
    except Exception as error:
        number = _number_of(error)
        if number in NO_ROOM:
            raise OSError(number, os.strerror(number)) from error
        raise ModelError(f"{what}: {_line(error)}") from error


def _number_of(error: Exception) -> int:
    """The operating system's number of an error; 0 when none is known."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    mentioned = _MENTIONED.search(str(error))
    return int(mentioned.group(1)) if mentioned else 0


def _line(error: Exception) -> str:
    """An exception as one printable line of bounded length."""
    text = " ".join("".join(each if each.isprintable() else " " for each in str(error)).split())
    shown = text[:_LENGTH_MAX] + "..." if len(text) > _LENGTH_MAX else text
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__
