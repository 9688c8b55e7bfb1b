"""From settings to what lies below the engine: memory, tiers, movers, control; opened together, closed together."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from kvist.app.clock import SystemCalendar, SystemClock
from kvist.app.config import ServeConfig
from kvist.app.progress import Progress, Report
from kvist.app.shared_memory import shared_region
from kvist.app.tiers import OpenTier, opened_tiers
from kvist.base.errors import ConfigError
from kvist.base.units import format_bytes
from kvist.blocks.form import Form
from kvist.blocks.keys import Namespace
from kvist.cost.prefill import PrefillModel
from kvist.engine.below import Below
from kvist.engine.form import form_of
from kvist.fabric.administration import Administration
from kvist.fabric.carry import Reach
from kvist.fabric.control import Fabric
from kvist.fabric.movers import Movers
from kvist.fabric.policies import LOAD_CHOICES, TimeToLive
from kvist.fabric.settings import FabricSettings, Policies
from kvist.geometry.groups import ModelGeometry
from kvist.tiers.regions import Regions

RESTORE_S = 60.0
"""How long a tier may take to delete what no longer fits into it."""

FLUSH_S = 10.0
"""How long stores that are under way may take when everything ends."""

_STAGING_RECORDS_MIN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFabric:
    """The tiers below an engine, as the engine sees them and as an operator does."""

    below: Below
    fabric: Fabric


@contextlib.contextmanager
def opened_fabric(
    config: ServeConfig, geometry: ModelGeometry, namespace: Namespace, prefill: PrefillModel, report: Report
) -> Iterator[OpenFabric | None]:
    """Opens what the settings say lies below the engine, and closes it in the end; None where there is nothing.

    Args:
        config: checked settings.
        geometry: of the model, whose records will be stored.
        namespace: of its KV.
        prefill: how long computing is expected to take.
        report: takes how far the start has come.

    Raises:
        ConfigError: a tier cannot be used.
        CapacityError: the memory is not there.
    """
    if not config.tiers:
        yield None
        return
    report(Progress(stage="Opening tiers"))
    forms = tuple(form_of(group, config.dtype, config.block_tokens) for group in geometry.groups)
    _check_staging(config, forms)
    clock = SystemClock()
    with ExitStack() as stack:
        regions = Regions()
        stack.callback(regions.close)
        staging = regions.add(shared_region("staging", config.staging_memory, "--staging-memory"))
        record_bytes = [form.record_bytes for form in forms]
        tiers = stack.enter_context(opened_tiers(config.tiers, record_bytes, regions, clock))
        settings = FabricSettings(
            namespace=namespace,
            block_tokens=config.block_tokens,
            windows=tuple(group.window for group in geometry.groups),
            forms=forms,
            tiers=tuple(each.settings for each in tiers.values()),
            prefill=prefill,
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
        yield OpenFabric(below=Below(tiers=fabric, view=regions.view, time_s=clock.now_s), fabric=fabric)


def _restore(fabric: Fabric, tiers: Sequence[OpenTier]) -> None:
    """Enters what the tiers kept from the last time into the books."""
    for each in tiers:
        if each.settings.limits is not None:
            Administration(fabric).restore(each.settings.name, each.tier.entries(), RESTORE_S)


def _check_staging(config: ServeConfig, forms: Sequence[Form]) -> None:
    needed = _STAGING_RECORDS_MIN * sum(form.record_bytes for form in forms)
    if config.staging_memory < needed:
        raise ConfigError(
            f"--staging-memory {format_bytes(config.staging_memory)} is too little for this model's blocks; "
            f"give it {format_bytes(needed)} or more"
        )
