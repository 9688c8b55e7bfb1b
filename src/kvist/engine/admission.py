"""Whether a waiting request may start: a question of blocks, asked with the planner's arithmetic.

A request is admitted only when the blocks that it and everybody already running may still need are there.
An overcommit factor of f counts on outputs taking only 1/f of their bounds; when that turns out wrong,
somebody is preempted.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from kvist.base.ids import BlockId
from kvist.blocks.lifecycle import State
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import Hit
from kvist.engine.sequence import Sequence
from kvist.engine.settings import EngineSettings
from kvist.geometry.groups import KvGroup
from kvist.planner.budget import blocks_held_peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """Why a request cannot start now; it stays where it is in the queue."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """The figures behind the answer.

    Attributes:
        groups: the model's KV groups.
        block_tokens: tokens per block.
        step_tokens: most tokens one sequence computes in one step.
        overcommit: at least 1; outputs are expected to take 1/overcommit of their bounds.
    """

    groups: tuple[KvGroup, ...]
    block_tokens: int
    step_tokens: int
    overcommit: float

    def peak(self, tokens: int, step_tokens: int) -> list[int]:
        """Most blocks that a sequence of this length holds at once, by group.

        Args:
            tokens: its length in the end.
            step_tokens: most tokens of it that one step will compute from now on.
        """
        return [
            blocks_held_peak(group, tokens, step_tokens=step_tokens, block_tokens=self.block_tokens)
            for group in self.groups
        ]

    def tokens_expected(self, sequence: Sequence) -> int:
        """How long the sequence is expected to become."""
        outstanding = sequence.tokens_bound - len(sequence.tokens)
        return len(sequence.tokens) + max(0, -int(-outstanding // self.overcommit))

    def claims(self, sequence: Sequence, held: Seq[int]) -> list[int]:
        """Blocks that a sequence holding `held` has to be sure of, by group.

        Of a group without a window, those that it lacks: what it holds, alone or with others, it holds to its end. Of
        a window, all that it ever holds at once: when it passes a block that others hold too, it needs another one and
        none becomes free.
        """
        # A sequence that decodes holds less than one whose prefill takes whole steps.
        step_tokens = min(self.step_tokens, max(1, sequence.remaining))
        peak = self.peak(self.tokens_expected(sequence), step_tokens)
        return [
            max(0, most - now) if group.window is None else most
            for group, most, now in zip(self.groups, peak, held, strict=True)
        ]


def rules_of(settings: EngineSettings) -> AdmissionRules:
    """The figures of one engine."""
    return AdmissionRules(
        groups=settings.groups,
        block_tokens=settings.block_tokens,
        step_tokens=settings.step_tokens,
        overcommit=settings.overcommit,
    )


def may_start(
    rules: AdmissionRules, pools: Seq[BlockPool], running: Iterable[Sequence], candidate: Sequence, hit: Hit
) -> Deferred | None:
    """None when the candidate may start from this hit, else what stands in the way."""
    claimed = [0] * len(pools)
    for sequence in running:
        for group, blocks in enumerate(rules.claims(sequence, sequence.table.held_counts())):
            claimed[group] += blocks
    held = [sum(block is not None for block in blocks) for blocks in hit.blocks]
    wanted = rules.claims(candidate, held)
    for group, pool in enumerate(pools):
        left = _to_be_claimed(rules.groups[group], pool, hit.blocks[group]) - claimed[group]
        if wanted[group] > left:
            return Deferred(
                reason=f"needs {wanted[group]} blocks of KV group {group}, {max(0, left)} are not spoken for"
            )
    return None


def _to_be_claimed(group: KvGroup, pool: BlockPool, hit: Seq[BlockId | None]) -> int:
    """Blocks of a pool that claims are made on, once the hit is taken; see `AdmissionRules.claims`."""
    if group.window is not None:
        return len(pool)
    return pool.available - sum(block is not None and pool.state(block) is State.CACHED for block in hit)
