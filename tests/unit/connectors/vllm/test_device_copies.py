"""Copies of a device: the same bytes as the host's, in every layout; with streams where there is a device."""

from dataclasses import replace

import pytest
import torch

from fakes.kv_tensors import LAYOUTS, Laid, kv_of, memory_of
from kvist.base.errors import WireError
from kvist.base.units import Tokens
from kvist.connectors.vllm.device_copies import DeviceCopies, copies_of, pinned, side_stream
from kvist.connectors.vllm.host_copies import HostCopies
from kvist.connectors.vllm.shapes import CANONICAL, EngineGroup, RecordShape, Share, WorkerShape, record_shapes
from kvist.connectors.vllm.views import LayerView, group_shape, group_views
from kvist.tiers.regions import Region, RegionId

CPU = torch.device("cpu")


def record_of(views: tuple[LayerView, ...], group: EngineGroup, engine_blocks: int) -> RecordShape:
    """Of two workers, of which the second one's heads are what the tests look at."""
    coarse = replace(group, index=1, block_tokens=Tokens(group.block_tokens * engine_blocks))
    workers = [
        WorkerShape(
            pipeline_rank=0,
            tensor_rank=rank,
            machine="here",
            packing=CANONICAL,
            replicas=1,
            groups=(group_shape(views), group_shape(views)),
        )
        for rank in range(2)
    ]
    return record_shapes([group, coarse], workers)[0]


def made(laid: Laid, seed: int, device: torch.device) -> tuple[dict[str, torch.Tensor], tuple[LayerView, ...]]:
    tensors = laid.tensors(memory_of(laid.begin + laid.nbytes, seed).to(device))
    return tensors, group_views(tensors, laid.group(tensors), laid.blocks, laid.inside())


def check_alike(laid: Laid, device: torch.device, side: torch.cuda.Stream | None, payload: memoryview) -> None:
    """Stores two blocks from the host's memory and from the device's, and loads them into others of the device."""
    tensors, views = made(laid, 1, CPU)
    record = record_of(views, laid.group(tensors), 2)
    share = record.shares[0, 1]
    host = HostCopies(views, record, share)
    device_tensors, device_views = made(laid, 1, device)
    copies = DeviceCopies(device_views, record, share, side)
    assert (copies.in_bytes, copies.out_bytes) == (host.in_bytes, host.out_bytes)

    expected = memoryview(bytearray(b"\xa5" * record.form.payload_bytes))
    found = payload[: record.form.payload_bytes]
    found[:] = expected
    host.copy_out([5, 2], expected)
    wait(side, copies.copy_out([5, 2], found))
    assert found == expected

    host.copy_in([0, 7], expected)
    wait(side, copies.copy_in([0, 7], found))
    assert (kv_of({name: each.cpu() for name, each in device_tensors.items()}, 8) == kv_of(tensors, 8)).all()


def wait(side: torch.cuda.Stream | None, done: object) -> None:
    if side is not None:
        side.synchronize()
    assert callable(done)
    assert done()


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_streams_they_do_what_the_host_does(layout: str, parts: int) -> None:
    check_alike(Laid(layout=layout, parts=parts, begin=64), CPU, None, memoryview(bytearray(2**16)))


@pytest.mark.cuda
@pytest.mark.parametrize("layout", LAYOUTS)
def test_beside_the_compute_stream_they_do_what_the_host_does(layout: str) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    region = Region(RegionId("staging"), 2**16, pin=pinned)
    try:
        check_alike(Laid(layout=layout, begin=64), device, side_stream(device), region.view(0, 2**16))
    finally:
        region.close()


def test_the_copies_of_host_memory_are_the_hosts() -> None:
    tensors, views = made(Laid(), 1, CPU)
    record = record_of(views, Laid().group(tensors), 1)
    assert isinstance(copies_of(views, record, record.shares[0, 0], None), HostCopies)
    assert isinstance(copies_of((), record, replace(record.shares[0, 0], layers=0), None), HostCopies)
    assert side_stream(CPU) is None


@pytest.mark.parametrize("blocks", [(), (1,), (1, 8), (-1, 2)])
def test_blocks_that_are_no_record_are_refused(blocks: tuple[int, ...]) -> None:
    tensors, views = made(Laid(), 1, CPU)
    record = record_of(views, Laid().group(tensors), 2)
    copies = DeviceCopies(views, record, record.shares[0, 0], None)
    payload = memoryview(bytearray(record.form.payload_bytes))
    for verb in (copies.copy_in, copies.copy_out):
        with pytest.raises(WireError, match="blocks"):
            verb(blocks, payload)
    assert not any(payload)


def test_who_does_not_write_only_reads() -> None:
    tensors, views = made(Laid(), 1, CPU)
    record = record_of(views, Laid().group(tensors), 1)
    share = replace(record.shares[0, 0], writes=False)
    payload = memoryview(bytearray(record.form.payload_bytes))
    assert DeviceCopies(views, record, share, None).copy_out([1], payload)()
    assert not any(payload)
    none = Share(layers_first=0, layers=0, heads_first=0, heads=0, writes=True)
    assert DeviceCopies((), record, none, None).copy_out([1], payload)()
    assert DeviceCopies((), record, none, None).copy_in([1], payload)()
    assert not any(payload)
