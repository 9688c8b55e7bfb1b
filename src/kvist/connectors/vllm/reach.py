"""What one worker can copy between: its KV tensors on one side, shared memory of the scheduler's process on the other.

Knows how, not when: orders and their ends are in `worker`.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from kvist.base.errors import CapacityError, ConfigError, KvistError
from kvist.connectors.vllm.device_copies import Copies, copies_of, pinned, side_stream
from kvist.connectors.vllm.shapes import CANONICAL, EngineGroup, RecordShape, WorkerShape
from kvist.connectors.vllm.views import Inside, LayerView, group_shape, group_views
from kvist.tiers.regions import Buffer, Region, RegionHandle, Regions

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What a worker knows of itself before it has tensors.

    Attributes:
        pipeline_rank, tensor_rank: which worker it is.
        machine: names the running system.
        packing: `CANONICAL`, or how a block is packed for the processor.
        replicas: so many consecutive tensor ranks hold the same heads.
        block_bytes: of one block of one layer, without what fills it up; in the order of the stored groups.
        whole_requests: the engine recomputes a request from its start when a load failed, and not from a block on:
            it has several groups.
    """

    pipeline_rank: int
    tensor_rank: int
    machine: str
    packing: str
    replicas: int
    block_bytes: tuple[int, ...]
    whole_requests: bool


class Complaints:
    """Says what goes wrong, once for each kind: a cause that lasts would fill the log."""

    def __init__(self) -> None:
        self._said = set[tuple[str, str]]()

    def say(self, verb: str, error: Exception) -> None:
        """Logs that something could not be done, unless it was said before."""
        kind = type(error).__name__
        if (verb, kind) not in self._said:
            self._said.add((verb, kind))
            _log.error("cannot %s: %s: %s; this is said once", verb, kind, error)


class Reach:
    """Owns this worker's maps of shared memory and its copies; one thread at a time.

    Attributes:
        copies: of each group; none before it is known what records look like, or where that is not understood.
    """

    def __init__(self, groups: Sequence[EngineGroup], facts: WorkerFacts, complaints: Complaints) -> None:
        """Takes what is known before there are tensors."""
        self.copies: tuple[Copies, ...] = ()
        self._groups = tuple(groups)
        self._facts = facts
        self._complaints = complaints
        self._views: tuple[tuple[LayerView, ...], ...] = ()
        self._records: tuple[RecordShape, ...] = ()
        self._regions = Regions()
        self._side: torch.cuda.Stream | None = None

    def register(self, kv_caches: Mapping[str, torch.Tensor], blocks: int) -> None:
        """Looks at the engine's KV tensors.

        Raises:
            ConfigError: they cannot be stored.
        """
        raw = self._facts.packing != CANONICAL
        if len(self._facts.block_bytes) != len(self._groups):
            raise ConfigError(f"{len(self._groups)} groups have {len(self._facts.block_bytes)} sizes of blocks")
        self._views = tuple(
            group_views(kv_caches, group, blocks, Inside(raw=raw, block_bytes=size))
            for group, size in zip(self._groups, self._facts.block_bytes, strict=True)
        )
        devices = {view.tensor.device for views in self._views for view in views}
        if len(devices) > 1 or {device.type for device in devices} - {"cpu", "cuda"}:
            raise ConfigError(f"KV in the memory of {', '.join(sorted(map(str, devices)))} cannot be copied")
        self._side = next(iter(map(side_stream, devices)), None)
        self.copies = self._copies_of(self._records) if self._records else ()

    def shape(self) -> WorkerShape:
        """What this worker says of itself; its tensors must be there."""
        facts = self._facts
        packed = sorted({view.packed for views in self._views for view in views if view.packed})
        return WorkerShape(
            pipeline_rank=facts.pipeline_rank,
            tensor_rank=facts.tensor_rank,
            machine=facts.machine,
            packing=f"{facts.packing}: {', '.join(packed)}" if packed else facts.packing,
            replicas=facts.replicas,
            groups=tuple(map(group_shape, self._views)),
        )

    def learn(self, records: tuple[RecordShape, ...]) -> bool:
        """Makes the copies once it is known what records look like; whether that was new."""
        if not records or records == self._records:
            return False
        self._records = records
        self.copies = self._copies_of(records)
        return True

    def map(self, handles: Iterable[RegionHandle]) -> None:
        """Makes regions known that are not; one that cannot be mapped is tried again when it is named again."""
        for handle in handles:
            if handle.region in self._regions:
                continue
            try:
                self._regions.add(self._attached(handle))
            except KvistError as error:
                self._complaints.say(f"map {handle.region}", error)

    def payload(self, buffer: Buffer) -> memoryview:
        """The bytes of a record; of a region that is not mapped, a `KeyError`."""
        return self._regions.view(buffer)

    def close(self) -> None:
        """Gives up shared memory, once what runs beside is over. May be repeated."""
        if self._side is not None:
            self._side.synchronize()
        self.copies = ()
        self._regions.close()
        self._regions = Regions()

    def _copies_of(self, records: Sequence[RecordShape]) -> tuple[Copies, ...]:
        """Without them every order fails, which is reported; the engine goes on."""
        rank = (self._facts.pipeline_rank, self._facts.tensor_rank)
        try:
            pairs = zip(self._views, records, strict=True)
            return tuple(copies_of(views, record, record.shares[rank], self._side) for views, record in pairs)
        except Exception as error:  # noqa: BLE001  whatever the scheduler's side said, the engine goes on without us
            self._complaints.say("understand the shapes of records", error)
            return ()

    def _attached(self, handle: RegionHandle) -> Region:
        """Maps a region, and tells the device of it where there is one; a device can do without."""
        if self._side is not None:
            try:
                return Region.attached(handle, writable=True, pin=pinned)
            except CapacityError as error:
                self._complaints.say(f"pin {handle.region}", error)
        return Region.attached(handle, writable=True)
