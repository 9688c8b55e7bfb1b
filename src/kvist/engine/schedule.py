"""Which tokens run in the next step.

Decodes come first, one token each, so that no stream stalls; prompts share what is left of the step's budget
in the order of admission. A chunk that does not finish its prompt ends at a block boundary, so that every block
is written by one step wherever the budget allows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvist.engine.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who computes how many of its next tokens, in the order of admission; may be nobody.

    Attributes:
        sequences: each once.
        counts: for each at least 1 token.
        decodes: said where everybody computes the one token that is left, and nobody a prompt.
    """

    sequences: list[Sequence]
    counts: list[int]
    decodes: bool = False

    def __len__(self) -> int:
        return len(self.counts)

    def __iter__(self) -> Iterator[tuple[Sequence, int]]:
        return zip(self.sequences, self.counts, strict=True)


def plan_of(pieces: Iterable[tuple[Sequence, int]]) -> Plan:
    """A plan of these sequences and counts."""
    kept = list(pieces)
    return Plan(sequences=[sequence for sequence, _ in kept], counts=[count for _, count in kept])


def plan_step(running: Iterable[Sequence], *, step_tokens: int, block_tokens: int) -> Plan:
    """Divides the budget of one step.

    Args:
        running: admitted sequences in the order of admission.
        step_tokens: most tokens in one step; at least the number of sequences that decode.
        block_tokens: tokens per block.

    Returns:
        A plan in the order of admission; its counts add up to at most step_tokens.
    """
    sequences = list(running)
    remaining = [len(sequence.tokens) - sequence.computed for sequence in sequences]  # as `Sequence.remaining`
    decoding = remaining.count(1)
    if decoding == len(sequences):
        return Plan(sequences=sequences, counts=remaining, decodes=True)
    return plan_of(_divided(sequences, step_tokens - decoding, block_tokens))


def _divided(sequences: Iterable[Sequence], budget: int, block_tokens: int) -> Iterator[tuple[Sequence, int]]:
    for sequence in sequences:
        if sequence.remaining == 1:
            yield sequence, 1
            continue
        count = _chunk(sequence, budget, block_tokens)
        if count:
            yield sequence, count
            budget -= count


def _chunk(sequence: Sequence, budget: int, block_tokens: int) -> int:
    if sequence.remaining <= budget:
        return sequence.remaining
    end = (sequence.computed + max(0, budget)) // block_tokens * block_tokens
    # A budget smaller than what is left of the current block must still make progress.
    return end - sequence.computed if end > sequence.computed else max(0, budget)
