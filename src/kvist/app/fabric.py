"""From settings to what lies below the engine: memory, tiers, movers, control; opened together, closed together."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from kvist.app.clock import SystemCalendar, SystemClock
from kvist.app.progress import Progress, Report
from kvist.app.shared_memory import shared_region
from kvist.app.tier_config import TierConfig
from kvist.app.tiers import OpenTier, opened_tiers
from kvist.base.clock import Clock
from kvist.base.errors import ConfigError
from kvist.base.units import Tokens, format_bytes
from kvist.blocks.form import Form
from kvist.blocks.keys import Namespace
from kvist.cost.prefill import PrefillModel
from kvist.fabric.administration import Administration
from kvist.fabric.carry import Reach
from kvist.fabric.control import Fabric
from kvist.fabric.movers import Movers
from kvist.fabric.policies import LOAD_CHOICES, TimeToLive
from kvist.fabric.settings import FabricSettings, Policies
from kvist.tiers.regions import RegionHandle, Regions

RESTORE_S = 60.0
"""How long a tier may take to delete what no longer fits into it."""

FLUSH_S = 10.0
"""How long stores that are under way may take when everything ends."""

STAGING_RECORDS_MIN = 16

_SWITCH_S = 0.0005
"""How long a thread that computes may keep the interpreter's lock when another waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What an engine stores, whichever engine it is.

    Attributes:
        namespace: of its KV.
        block_tokens: tokens per block.
        windows: by group; None: full attention.
        forms: by group: what a record looks like.
        prefill: how long computing is expected to take.
    """

    namespace: Namespace
    block_tokens: Tokens
    windows: tuple[Tokens | None, ...]
    forms: tuple[Form, ...]
    prefill: PrefillModel


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFabric:
    """What lies below an engine, open.

    Attributes:
        fabric: to ask, and for operators.
        regions: the memory that its answers name.
        clock: of its deadlines.
    """

    fabric: Fabric
    regions: Regions
    clock: Clock

    def handles(self) -> tuple[RegionHandle, ...]:
        """How an engine's other processes find the memory that answers name: staging, and tiers that lend records."""
        return self.regions.handles()


@contextlib.contextmanager
def opened_fabric(config: TierConfig, stored: Stored, report: Report) -> Iterator[OpenFabric]:
    """Opens what the settings say lies below an engine, and closes it in the end.

    Args:
        config: checked settings, with tiers and with so much staging as is to be used.
        stored: what will be.
        report: takes how far the start has come.

    Raises:
        ConfigError: a tier cannot be used.
        CapacityError: the memory is not there.
    """
    report(Progress(stage="Opening tiers"))
    staging_bytes = _staging_bytes(config, stored.forms)
    clock = SystemClock()
    with ExitStack() as stack:
        regions = Regions()
        stack.callback(regions.close)
        staging = regions.add(shared_region("staging", staging_bytes, "staging memory"))
        record_bytes = [form.record_bytes for form in stored.forms]
        tiers = stack.enter_context(opened_tiers(config.tiers, record_bytes, regions, clock))
        settings = FabricSettings(
            namespace=stored.namespace,
            block_tokens=stored.block_tokens,
            windows=stored.windows,
            forms=stored.forms,
            tiers=tuple(each.settings for each in tiers.values()),
            prefill=stored.prefill,
            staging=staging.id,
            staging_bytes=staging.size,
            policies=Policies(
                retention=TimeToLive(ttl_s=config.cache_ttl_seconds), load_choice=LOAD_CHOICES[config.load_when]
            ),
        )
        reach = Reach(tiers={name: each.tier for name, each in tiers.items()}, regions=regions, clock=clock)
        fabric = Fabric(settings, Movers(reach), clock, SystemCalendar())
        stack.callback(fabric.close, FLUSH_S)
        _restore(fabric, list(tiers.values()))
        yield OpenFabric(fabric=fabric, regions=regions, clock=clock)


def share_interpreter() -> None:
    """Lets an engine's thread have the interpreter's lock soon where movers run beside it (decision 0003).

    Holds for the whole process; one that passes the lock sooner already stays as it is.
    """
    sys.setswitchinterval(min(_SWITCH_S, sys.getswitchinterval()))


def _restore(fabric: Fabric, tiers: Sequence[OpenTier]) -> None:
    """Enters what the tiers kept from the last time into the books."""
    for each in tiers:
        if each.settings.limits is not None:
            Administration(fabric).restore(each.settings.name, each.tier.entries(), RESTORE_S)


def _staging_bytes(config: TierConfig, forms: Sequence[Form]) -> int:
    given = config.staging_memory
    assert given is not None, "nobody has decided how much staging there is"
    needed = STAGING_RECORDS_MIN * sum(form.record_bytes for form in forms)
    if given < needed:
        raise ConfigError(
            f"staging memory of {format_bytes(given)} is too little for this model's blocks; "
            f"give it {format_bytes(needed)} or more (--staging-memory, or staging_memory in a file)"
        )
    return given
