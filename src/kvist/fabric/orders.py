"""Has jobs done for an operator, in whose thread it waits: one at a time, or listings part by part."""

from collections.abc import Callable, Generator, Sequence

from kvist.base.errors import ConfigError, TierError, TierTimeoutError, TierUnavailableError
from kvist.blocks.keys import TenantTag
from kvist.fabric.control import Fabric, Inside
from kvist.fabric.jobs import Broken, Job, Listed, ListJob, Report, Skipped
from kvist.fabric.messages import Ticket, TierName
from kvist.fabric.tier_state import TierState
from kvist.tiers.ports import Entry

BATCH = 64
"""Records per step: so many are looked at under the lock, and no more."""


class Orders:
    """Jobs of one fabric. May be used from several threads at once."""

    def __init__(self, fabric: Fabric) -> None:
        """Acts on this fabric."""
        self._fabric = fabric

    def until(self, timeout_s: float) -> float:
        """When, by the monotonic clock, so many seconds will be over."""
        with self._fabric.inside() as inside:
            return inside.desk.clock.now_s() + timeout_s

    def left_s(self, until_s: float) -> float:
        """Seconds until then."""
        with self._fabric.inside() as inside:
            return max(0.0, until_s - inside.desk.clock.now_s())

    def state(self, name: TierName) -> TierState:
        """What control knows of a tier.

        Raises:
            ConfigError: there is none of this name.
        """
        with self._fabric.inside() as inside:
            return state_of(inside, name)

    def ask(
        self,
        state: TierState,
        make_job: Callable[[Ticket], Job],
        timeout_s: float,
        late: Callable[[Report], None] | None = None,
    ) -> Report:
        """Has a job done, and waits for it.

        Args:
            state: of the tier.
            make_job: with a ticket of its own.
            timeout_s: how long to wait.
            late: called under the lock with a report that comes when nobody waits for it any more.

        Raises:
            TierError: it failed, or not in time.
        """
        reports: list[Report] = []
        is_waited_for = True

        def done(report: Report) -> None:
            reports.append(report)
            if late is not None and not is_waited_for:
                late(report)

        with self._fabric.inside() as inside:
            job = make_job(inside.desk.dispatch.new_ticket())
            if not inside.desk.dispatch.send(job, state, done, now_s=inside.desk.clock.now_s()):
                raise TierUnavailableError("it is left alone because it failed, or has too much to do", tier=state.name)
        if not self._fabric.until(lambda: bool(reports), timeout_s):
            with self._fabric.inside() as inside:
                if not reports:
                    is_waited_for = False
                    inside.desk.dispatch.withdraw(job.ticket, inside.desk.clock.now_s())
                    raise TierTimeoutError(f"no answer within {timeout_s:g} s", tier=state.name)
        report = reports[0]
        if isinstance(report, Broken):
            raise report.error if isinstance(report.error, TierError) else TierError(str(report.error), tier=state.name)
        if isinstance(report, Skipped):
            raise TierUnavailableError("it is closing", tier=state.name)
        return report

    def deleted(self, state: TierState, until_s: float) -> None:
        """Waits until a tier has forgotten what it must, or the time is over."""
        with self._fabric.inside() as inside:
            inside.writing.flush(state)
        self._fabric.until(lambda: not state.undeleted, self.left_s(until_s))

    def parts(
        self, state: TierState, tenant: TenantTag | None, until_s: float, part: int = BATCH
    ) -> Generator[Sequence[Entry], None, None]:
        """What a tier has, part by part; it is gone through once, also while what was given is being removed.

        Raises:
            TierError: a keyed tier could not be asked in time.
        """
        if state.book is None:
            yield from self._listed(state, tenant, until_s, part)
            return
        with self._fabric.inside():
            entries = list(state.book.entries(tenant))
        for first in range(0, len(entries), part):
            yield entries[first : first + part]

    def _listed(
        self, state: TierState, tenant: TenantTag | None, until_s: float, part: int
    ) -> Generator[Sequence[Entry], None, None]:
        begun: list[Ticket] = []

        def next_part(ticket: Ticket, most: int = part) -> Job:
            begun.append(ticket)
            return ListJob(ticket=ticket, tier=state.name, tenant=tenant, listing=begun[0], most=most)

        is_over = False
        try:
            while not is_over:
                report = self.ask(state, next_part, self.left_s(until_s))
                assert isinstance(report, Listed), f"{report} answers no listing"
                is_over = len(report.entries) < part
                yield report.entries
        finally:
            if not is_over:
                with self._fabric.inside() as inside:
                    desk = inside.desk
                    job = next_part(desk.dispatch.new_ticket(), 0)
                    desk.dispatch.send(job, state, lambda _: None, now_s=desk.clock.now_s())


def state_of(inside: Inside, name: TierName) -> TierState:
    """What control knows of a tier.

    Raises:
        ConfigError: there is none of this name.
    """
    state = inside.desk.by_name.get(name)
    if state is None:
        raise ConfigError(f"there is no tier called {name!r}; there are {', '.join(inside.desk.by_name)}")
    return state
