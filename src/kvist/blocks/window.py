"""Which blocks a window needs, and which passed ones are worth keeping.

Knows positions only. A query at position p of a layer with window w reads the keys in (p - w, p]; a layer
without a window reads all. "Checkpoints" are the lengths at which a later request is likely to stop matching:
the end of a prompt, the point where two prompts part, and every so many tokens of a long one. A hit of n tokens
needs the window just before n, so only windows before checkpoints are kept.
"""

from dataclasses import dataclass

from kvist.base.units import Tokens


def first_block_of_hit(tokens: int, window: Tokens | None, block_tokens: int) -> int:
    """Index of the first block that a hit of `tokens` tokens needs: those covering [tokens - window, tokens)."""
    return 0 if window is None else max(0, tokens - window) // block_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Chooses the window blocks that stay cached once every sequence has passed them.

    Attributes:
        checkpoint_tokens: a long sequence has a checkpoint every so many tokens.
        slack_tokens: prompts often part a little before their end (another question about one document), so
            each block boundary from this many tokens before a prompt's end on is a checkpoint.

    Hits end where blocks do, so a checkpoint within a block is the boundary before it.
    """

    checkpoint_tokens: Tokens = Tokens(4096)
    slack_tokens: Tokens = Tokens(128)

    def keeps(self, start: int, end: int, window: Tokens | None, marks: "Marks") -> bool:
        """Whether the block of tokens [start, end) belongs to a window before some checkpoint."""
        if window is None:
            return True
        size = end - start
        regular = -(-end // self.checkpoint_tokens) * self.checkpoint_tokens
        earliest_end = marks.prompt_tokens - self.slack_tokens
        return (
            end > regular - regular % size - window
            or (end <= marks.prompt_tokens and end > earliest_end - earliest_end % size - window)
            or any(start < branch and end > branch - window for branch in marks.branches)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Where one sequence is likely to part from others.

    Attributes:
        prompt_tokens: length of the prompt.
        branches: lengths at which the sequence is known to have met another.
    """

    prompt_tokens: int
    branches: tuple[int, ...] = ()
