"""Which tokens run in the next step.

Decodes come first, one token each, so that no stream stalls; prompts share what is left of the step's budget
in the order of admission. A chunk that does not finish its prompt ends at a block boundary, so that every block
is written by one step wherever the budget allows.
"""

from collections.abc import Iterable
from typing import NamedTuple

from kvist.engine.sequence import Sequence


class Slice(NamedTuple):
    """The next `tokens` tokens of a sequence."""

    sequence: Sequence
    tokens: int


def plan_step(running: Iterable[Sequence], *, step_tokens: int, block_tokens: int) -> list[Slice]:
    """Divides the budget of one step.

    Args:
        running: admitted sequences in the order of admission.
        step_tokens: most tokens in one step; at least the number of sequences that decode.
        block_tokens: tokens per block.

    Returns:
        Slices in the order of admission; their tokens add up to at most step_tokens.
    """
    sequences = list(running)
    budget = step_tokens - sum(sequence.remaining == 1 for sequence in sequences)
    plan: list[Slice] = []
    for sequence in sequences:
        if sequence.remaining == 1:
            plan.append(Slice(sequence, 1))
            continue
        count = _chunk(sequence, budget, block_tokens)
        if count:
            plan.append(Slice(sequence, count))
            budget -= count
    return plan


def _chunk(sequence: Sequence, budget: int, block_tokens: int) -> int:
    if sequence.remaining <= budget:
        return sequence.remaining
    end = (sequence.computed + max(0, budget)) // block_tokens * block_tokens
    # A budget smaller than what is left of the current block must still make progress.
    return end - sequence.computed if end > sequence.computed else max(0, budget)
