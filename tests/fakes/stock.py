"""Stocks of a placed and a keyed tier, small enough to fill, as a running server has them and as none does."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fakes.fabric import HandCalendar
from fakes.tiers import BLUE, NOW_UNIX_S, DictTier, form_of, key_of, write_of
from kvist.app.clock import SystemClock
from kvist.app.offline_stock import OfflineStock
from kvist.app.tiers import OpenTier
from kvist.base.units import Tokens
from kvist.blocks.form import read_header, stamp_record
from kvist.blocks.keys import Namespace, TenantTag
from kvist.cost.prefill import Work, prefill_model
from kvist.fabric.carry import Reach
from kvist.fabric.claims import BookLimits
from kvist.fabric.control import Fabric
from kvist.fabric.messages import TierName
from kvist.fabric.movers import Movers
from kvist.fabric.settings import FabricSettings, TierSettings
from kvist.server.administration_ports import Stock
from kvist.server.administration_stock import FabricStock
from kvist.tiers.memory import MemoryTier
from kvist.tiers.ports import Address, Entry, Write
from kvist.tiers.regions import Region, RegionId, Regions
from kvist.tiers.verified import verified

DRAM, POOL = TierName("dram"), TierName("pool")
RECORD = 600
PLACE = 640
PLACES = 40
WAIT_S = 60.0
MANY = 10_000

Make = Callable[[dict[TierName, OpenTier], Regions], Stock]


@dataclass(slots=True, kw_only=True)
class Trial:
    """A stock of a placed and a keyed tier, and what is really in the keyed one."""

    stock: Stock
    pool: DictTier

    def store(self, numbers: Sequence[int], tenant: TenantTag = BLUE, expires: float | None = None) -> list[Entry]:
        """Records in the pool, as a server would have left them; what the stock says of them."""
        addresses = [Address(key=key_of(number, tenant), tenant=tenant) for number in numbers]
        self.pool.write([_write(address, expires) for address in addresses])
        keys = {address.key for address in addresses}
        return [entry for entry in self.entries(POOL, tenant) if entry.address.key in keys]

    def entries(self, tier: TierName, tenant: TenantTag | None = None) -> list[Entry]:
        return list(self.stock.entries(tier, tenant, MANY, WAIT_S))

    def keys(self, tier: TierName, tenant: TenantTag | None = None) -> set[object]:
        return {entry.address.key for entry in self.entries(tier, tenant)}


def _write(address: Address, expires: float | None) -> Write:
    """A record whose header says when it expires, as a server stamps it."""
    write = write_of(address, RECORD, expires=expires)
    record = memoryview(bytearray(write.record))
    stamp_record(record, replace(read_header(record), expires_unix_s=expires))
    return replace(write, record=record)


def offline_stock(tiers: dict[TierName, OpenTier], _regions: Regions) -> Stock:
    return OfflineStock(tiers, SystemClock(), HandCalendar(NOW_UNIX_S))


def fabric_stock(tiers: dict[TierName, OpenTier], regions: Regions) -> Stock:
    staging = regions.add(Region(RegionId("staging"), 2**20))
    settings = FabricSettings(
        namespace=Namespace(bytes(32)),
        block_tokens=16,
        windows=(None,),
        forms=(form_of(RECORD),),
        tiers=tuple(each.settings for each in tiers.values()),
        prefill=prefill_model(Work(parameters=10**6, attention_width=64), step_tokens=Tokens(64)),
        staging=staging.id,
        staging_bytes=staging.size,
    )
    clock = SystemClock()
    reach = Reach(tiers={name: each.tier for name, each in tiers.items()}, regions=regions, clock=clock)
    return FabricStock(Fabric(settings, Movers(reach), clock, HandCalendar(NOW_UNIX_S)))


STOCKS: list[Make] = [offline_stock, fabric_stock]


@contextmanager
def opened(make: Make) -> Iterator[Trial]:
    regions, pool = Regions(), DictTier("pool")
    region = regions.add(Region(RegionId("tier-dram"), PLACES * PLACE))
    limits = BookLimits(bytes_max=PLACES * PLACE, extent_bytes=4 * PLACE, alignment=64)
    dram = OpenTier(
        tier=verified(MemoryTier("dram", region, alignment=64)),
        settings=TierSettings(name=DRAM, kind="dram", limits=limits, region=region.id),
    )
    keyed = OpenTier(tier=verified(pool), settings=TierSettings(name=POOL, kind="pool"))
    yield Trial(stock=make({DRAM: dram, POOL: keyed}, regions), pool=pool)
    regions.close()
