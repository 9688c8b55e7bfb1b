"""How a sequence should begin: what each tier has of it, which ends that gives, and which of them is worth its load.

Pure but for the estimators it owns: what was learned of prefill, and what may still be spent on exploring.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from kvist.base.ids import GroupId
from kvist.base.units import Bytes, Tokens
from kvist.cost.choice import Choice, Exploration, Prospect
from kvist.fabric.asking import Inquiry
from kvist.fabric.match import Candidate, candidates
from kvist.fabric.messages import Decision, Option, Plan, Query, Source, TierName, Want
from kvist.fabric.settings import FabricSettings
from kvist.fabric.tier_state import TierState

_G1 = "G1"
_new_want = partial(tuple.__new__, Want)  # as `Want(*fields)`, at a third of its time: there may be thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a plan is made: monotonic and wall-clock seconds."""

    monotonic_s: float
    unix_s: float


class Planning:
    """Makes plans. Called under control's lock."""

    def __init__(self, settings: FabricSettings, tiers: Sequence[TierState]) -> None:
        self._settings = settings
        self._tiers = tiers
        self._names = [TierName(_G1), *(tier.name for tier in tiers)]
        self._record_bytes = [form.record_bytes for form in settings.forms]
        self._prefill = settings.prefill
        self._exploration = Exploration()

    def learn_prefill(self, start: int, end: int, seconds: float) -> None:
        """A step took so long for tokens [start, end) of one sequence."""
        self._prefill = self._prefill.learned(start, end, seconds)

    def plan(
        self, query: Query, inquiry: Inquiry, resident: Sequence[Sequence[bool]], at: Moment, *, is_first: bool
    ) -> Plan:
        """What to load of a sequence.

        Args:
            query: names it.
            inquiry: what keyed tiers answered.
            resident: `[group][index]`: what G1 has.
            at: now.
            is_first: whether what is looked for counts.
        """
        present = [self._presence(tier, inquiry, at) for tier in self._tiers]
        if is_first:
            for tier, groups in zip(self._tiers, present, strict=True):
                _count(tier, inquiry, groups, resident)
        plan, self._exploration = self._weighed(query, [resident, *present], at)
        return plan

    def foresee(self, query: Query, inquiry: Inquiry, resident: Sequence[Sequence[bool]], at: Moment) -> Plan:
        """What `plan` would say, without counting anything or spending what may be spent on exploring."""
        present = [self._presence(tier, inquiry, at) for tier in self._tiers]
        plan, _ = self._weighed(query, [resident, *present], at)
        return plan

    def _weighed(
        self, query: Query, sources: Sequence[Sequence[Sequence[bool]]], at: Moment
    ) -> tuple[Plan, Exploration]:
        """The plan, given what G1 and each tier have, and what is left for exploring if it is followed."""
        limit = min(len(query.chain), max(0, query.tokens - 1) // self._settings.block_tokens)
        found = candidates(sources, self._settings.windows, block_tokens=self._settings.block_tokens, limit=limit)
        prospects = [self._prospect(each, query.tokens, at.monotonic_s) for each in found]
        choice = self._settings.policies.load_choice(prospects, self._exploration, now_s=at.monotonic_s)
        return self._planned(found, prospects, choice, at.monotonic_s), choice.exploration

    def _presence(self, tier: TierState, inquiry: Inquiry, at: Moment) -> list[list[bool]]:
        """What a tier has, `[group][index]`; nothing of one that is left alone, or of a namespace that is over."""
        groups = range(len(self._settings.forms))
        if inquiry.is_void or not tier.readable(at.monotonic_s):
            return [[] for _ in groups]
        if tier.book is None:
            question = inquiry.questions.get(tier.name)
            blocks = len(inquiry.chain)
            return [[] if question is None else question.presence(group, blocks) for group in groups]
        return [
            tier.have(inquiry.namespace, GroupId(group), inquiry.chain, inquiry.tenant, at.unix_s) for group in groups
        ]

    def _bytes(self, blocks: Sequence[int]) -> int:
        """Of so many blocks of each group."""
        return sum(count * size for count, size in zip(blocks, self._record_bytes, strict=True))

    def _prospect(self, candidate: Candidate, tokens: int, now_s: float) -> Prospect:
        """Seconds of one candidate. Tiers load side by side, so the slowest one counts."""
        load_s = hopeful_s = unlearned_s = 0.0
        for tier, blocks in zip(self._tiers, candidate.blocks[1:], strict=True):
            nbytes = self._bytes(blocks)
            if nbytes:
                jobs = -(-sum(blocks) // self._settings.piece_records)
                load_s = max(load_s, tier.speed.predict_s(nbytes, queued_bytes=tier.bytes_loading, jobs=jobs))
                hopeful_s = max(hopeful_s, tier.speed.hopeful_s(nbytes, jobs=jobs))
                unlearned_s = max(unlearned_s, tier.speed.unlearned_for_s(now_s))
        end = candidate.end * self._settings.block_tokens
        return Prospect(
            tokens=end,
            load_s=load_s,
            prefill_s=self._prefill.predict_s(end, tokens),
            hopeful_load_s=hopeful_s,
            unlearned_for_s=unlearned_s,
        )

    def _planned(self, found: Sequence[Candidate], prospects: Sequence[Prospect], choice: Choice, now_s: float) -> Plan:
        options = tuple(
            Option(
                tokens=Tokens(each.tokens),
                sources=self._sources(candidate),
                load_s=each.load_s,
                prefill_s=each.prefill_s,
            )
            for candidate, each in zip(found, prospects, strict=True)
        )
        wants = found[choice.index].wants(self._names)
        return Plan(
            tokens=options[choice.index].tokens,
            wants=tuple(map(_new_want, wants)),
            deadline_s=now_s + choice.patience_s,
            decision=Decision(
                chosen=options[choice.index], options=options, reason=choice.reason, explored=choice.explored
            ),
        )

    def _sources(self, candidate: Candidate) -> tuple[Source, ...]:
        """Tokens and bytes by where they come from; what gives nothing is left out."""
        return tuple(
            Source(
                tier=name,
                tokens=Tokens(length * self._settings.block_tokens),
                bytes=Bytes(self._bytes(blocks)),
            )
            for name, length, blocks in zip(self._names, candidate.lengths, candidate.blocks, strict=True)
            if length or any(blocks)
        )


def _count(
    tier: TierState, inquiry: Inquiry, present: Sequence[Sequence[bool]], resident: Sequence[Sequence[bool]]
) -> None:
    """Law 6: queried = hit + miss, of the blocks that G1 does not have from the first one on.

    A keyed tier is queried about what it was asked.
    """
    question = inquiry.questions.get(tier.name)
    for group, have in enumerate(present):
        if tier.book is None:
            tier.tally.queried += len(question.asked[group]) if question is not None else 0
            tier.tally.hit += sum(have)
        elif have:
            held = list(resident[group])
            first = held.index(False) if False in held else len(held)
            tier.tally.queried += len(have) - first
            tier.tally.hit += sum(have[first:])
