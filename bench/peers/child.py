"""A child process of the comparison: takes prompts as lines of JSON, answers with when each token came.

Knows the protocol and no engine; the children beside it do. One line in, one line out, and nothing in between, so that
a child that nobody asks sleeps:

    {"prompts": [[1, 2, 3], ...], "output": 33}     all at once, that many tokens each, greedily
    {"times_s": [[0.5, 0.51, ...], ...], "cached": [0, ...]}

Times are seconds from when the child had read the line. Before the first line it says {"ready": {...}} with what it
is. What an engine writes to its standard output goes to standard error.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

Prompts = Sequence[Sequence[int]]

Answer = dict[str, list[list[float]] | list[int]]
"""`times_s`, for each prompt when each token came; `cached`, for each how many of its tokens were not computed."""

Ask = Callable[[Prompts, int], Answer]


def own_output() -> TextIO:
    """The pipe to who asks; from now on everybody else's standard output is standard error."""
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return kept


def serve(output: TextIO, about: dict[str, object], ask: Ask) -> None:
    """Says that it is ready, then answers line by line until nobody asks any more."""
    print(json.dumps({"ready": about}), file=output, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(ask(asked["prompts"], asked["output"])), file=output, flush=True)
