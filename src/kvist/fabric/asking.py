"""Questions to keyed tiers: which blocks of a sequence they have. One batched question each, with a deadline.

Blocks that a placed tier has and can give are not asked for. What has not been answered in time is not there. A tier
answers one question after the other, so each may take as much longer as there are questions before it; and only a tier
that has begun to answer is to blame for being late.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import not_

from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.keys import Namespace, TenantTag
from kvist.fabric.desk import Desk
from kvist.fabric.jobs import Answered, FindJob, Report
from kvist.fabric.messages import Ticket
from kvist.fabric.tier_state import TierState

_PATIENCE = 4.0
"""How many times longer than usual a question may take."""

_WAIT_S_MAX = 2.0
"""No question waits longer, however many are before it."""

_FADE = 0.2
"""Weight of the newest answer in what is usual."""


@dataclass(slots=True, kw_only=True, eq=False)
class Question:
    """What one keyed tier was asked about one sequence.

    Attributes:
        asked: by group: indices of the blocks.
        found: by group: whether it has each of them; None while it has not answered.
        open: whether an answer may still come.
    """

    job: Ticket
    asked: tuple[Sequence[int], ...]
    deadline_s: float
    found: tuple[Sequence[bool], ...] | None = None
    open: bool = True

    def presence(self, group: int, blocks: int) -> list[bool]:
        """Of each block of the chain, whether the tier has it, as far as it was asked and answered."""
        present = [False] * blocks
        if self.found is not None:
            for index, found in zip(self.asked[group], self.found[group], strict=True):
                present[index] = found
        return present


@dataclass(slots=True, kw_only=True, eq=False)
class Inquiry:
    """All questions about one sequence.

    Attributes:
        namespace: in which it is looked for.
        is_void: that namespace is over: nothing is to be found any more.
    """

    namespace: Namespace
    tenant: TenantTag
    chain: Sequence[BlockHash]
    questions: dict[str, Question] = field(default_factory=dict)
    is_void: bool = False


class Asking:
    """Asks, and takes the answers. Called under control's lock."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._settings = desk.settings
        self._placed = [tier for tier in desk.tiers if tier.book is not None]
        self._keyed = [tier for tier in desk.tiers if tier.book is None]
        self._dispatch = desk.dispatch
        self._open: dict[str, dict[Ticket, Question]] = {tier.name: {} for tier in self._keyed}

    def ask(self, tenant: TenantTag, chain: Sequence[BlockHash], now_s: float, now_unix_s: float) -> Inquiry:
        """Sends one question to each keyed tier in use."""
        inquiry = Inquiry(namespace=self._desk.namespace, tenant=tenant, chain=chain)
        tiers = [tier for tier in self._keyed if chain and tier.asks.would_allow(now_s) and tier.readable(now_s)]
        if tiers:
            groups = map(GroupId, range(len(self._settings.forms)))
            asked = [self._unplaced(inquiry, group, now_s, now_unix_s) for group in groups]
            for tier in tiers if any(asked) else ():
                self._send(inquiry, tier, tuple(asked), now_s)
        return inquiry

    def is_answered(self, inquiry: Inquiry, now_s: float) -> bool:
        """Whether nothing more will come, or not in time."""
        for name, question in inquiry.questions.items():
            if question.open and now_s >= question.deadline_s:
                self._close(name, question)
                if not self._dispatch.withdraw(question.job, now_s):
                    self._dispatch.blame(question.job, now_s)
        return not any(question.open for question in inquiry.questions.values())

    def forget(self, inquiry: Inquiry, now_s: float) -> None:
        """Nobody wants the answers any more; questions that wait in a queue are taken back."""
        for name, question in inquiry.questions.items():
            if question.found is None:
                self._close(name, question)
                self._dispatch.withdraw(question.job, now_s)

    def void(self, inquiry: Inquiry, now_s: float) -> None:
        """Its namespace is over: nothing that was or will be answered counts."""
        self.forget(inquiry, now_s)
        inquiry.questions.clear()
        inquiry.is_void = True

    def _unplaced(self, inquiry: Inquiry, group: GroupId, now_s: float, now_unix_s: float) -> Sequence[int]:
        """Indices of the blocks that no placed tier has, of those that can be read from."""
        blocks: Sequence[int] = range(len(inquiry.chain))
        for tier in self._placed:
            if not tier.readable(now_s):
                continue
            have = tier.have(inquiry.namespace, group, inquiry.chain, inquiry.tenant, now_unix_s)
            blocks = [index for index in blocks if not have[index]]
        return blocks

    def _send(self, inquiry: Inquiry, tier: TierState, asked: tuple[Sequence[int], ...], now_s: float) -> None:
        usual_s = _PATIENCE * tier.question_s
        limit_s = min(self._settings.question_s_max, max(self._settings.question_s_min, usual_s))
        limit_s = min(max(limit_s, _WAIT_S_MAX), limit_s * (1 + len(self._open[tier.name])))
        job = FindJob(
            ticket=self._dispatch.new_ticket(),
            tier=tier.name,
            tenant=inquiry.tenant,
            namespace=inquiry.namespace,
            groups=tuple(
                (GroupId(group), [inquiry.chain[index] for index in blocks]) for group, blocks in enumerate(asked)
            ),
        )
        question = Question(job=job.ticket, asked=asked, deadline_s=now_s + limit_s)

        def answered(report: Report) -> None:
            self._close(tier.name, question)
            if isinstance(report, Answered):
                question.found = report.found
                fade = _FADE if tier.question_s else 1.0  # the first answer is all that is known
                tier.question_s += fade * (report.seconds - tier.question_s)
                self._remember(job, report, tier)

        if self._dispatch.send(job, tier, answered, now_s=now_s):
            inquiry.questions[tier.name] = self._open[tier.name][job.ticket] = question

    def _close(self, tier: str, question: Question) -> None:
        question.open = False
        self._open[tier].pop(question.job, None)

    @staticmethod
    def _remember(job: FindJob, report: Answered, tier: TierState) -> None:
        for (group, hashes), found in zip(job.groups, report.found, strict=True):
            tier.known.add(job.namespace, group, compress(hashes, found))
            tier.known.forget(job.namespace, group, compress(hashes, map(not_, found)))
