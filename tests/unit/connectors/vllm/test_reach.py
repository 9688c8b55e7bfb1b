"""What a worker can copy between: tensors that move, regions that cannot be mapped, shapes it does not understand."""

import logging
from dataclasses import replace

import pytest
import torch

from fakes.kv_tensors import Laid, facts, memory_of
from kvist.base.errors import ConfigError
from kvist.connectors.vllm.reach import Complaints, Reach
from kvist.connectors.vllm.shapes import CANONICAL, record_shapes
from kvist.tiers.regions import Buffer, Region, RegionId

LAID = Laid()
STAGING = RegionId("staging")


def reach_of(laid: Laid = LAID, **changed: object) -> Reach:
    tensors = laid.tensors(memory_of(laid.nbytes))
    reach = Reach([laid.group(tensors)], facts([laid], **changed), Complaints())
    reach.register(tensors, laid.blocks)
    return reach


def test_a_worker_says_who_it_is_and_what_it_holds() -> None:
    shape = reach_of(tensor_rank=3, replicas=2).shape()
    assert (shape.pipeline_rank, shape.tensor_rank, shape.machine, shape.replicas) == (0, 3, "here", 2)
    assert shape.packing == CANONICAL
    assert shape.groups[0].heads == LAID.heads


def test_packing_says_what_the_blocks_were() -> None:
    packings = {reach_of(laid, packing="amx").shape().packing for laid in (LAID, replace(LAID, parts=2))}
    assert len(packings) == 2
    assert all(packing.startswith("amx: 2x") for packing in packings)


def test_sizes_of_blocks_are_told_for_each_group() -> None:
    with pytest.raises(ConfigError, match="1 groups have 2 sizes"):
        reach_of(block_bytes=(1, 2))


def test_other_devices_are_refused() -> None:
    tensors = {
        name: torch.empty_like(each, device="meta") for name, each in LAID.tensors(memory_of(LAID.nbytes)).items()
    }
    reach = Reach([LAID.group(tensors)], facts([LAID]), Complaints())
    with pytest.raises(ConfigError, match="memory of meta cannot be copied"):
        reach.register(tensors, LAID.blocks)


def test_shapes_are_learnt_once_and_outlive_tensors_that_move() -> None:
    reach = reach_of()
    records = record_shapes([LAID.group(reach.shape().groups[0].layers)], [reach.shape()])
    assert not reach.copies
    assert reach.learn(records)
    assert not reach.learn(records)
    assert not reach.learn(())
    before = reach.copies
    moved = LAID.tensors(memory_of(LAID.nbytes, 7))
    reach.register(moved, LAID.blocks)
    assert len(reach.copies) == 1
    assert reach.copies != before
    payload = memoryview(bytearray(records[0].form.payload_bytes))
    reach.copies[0].copy_out([1], payload)
    assert any(payload)


def test_shapes_that_are_not_this_workers_leave_it_without_copies(caplog: pytest.LogCaptureFixture) -> None:
    reach = reach_of(tensor_rank=1)
    records = record_shapes([LAID.group(reach.shape().groups[0].layers)], [reach_of().shape()])
    assert reach.learn(records)
    assert reach.copies == ()
    both = record_shapes([LAID.group(reach.shape().groups[0].layers)], [reach_of().shape(), reach.shape()])
    assert reach.learn(both * 2)
    assert reach.copies == ()
    assert reach.learn(both)
    assert len(reach.copies) == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2  # an unknown rank, then too many groups


def test_a_region_is_mapped_once_it_is_there(caplog: pytest.LogCaptureFixture) -> None:
    reach, region = reach_of(), Region(STAGING, 4096)
    handle = region.handle()
    reach.map([replace(handle, inode=handle.inode + 1)])
    with pytest.raises(KeyError):
        reach.payload(Buffer(region=STAGING, offset=0, length=8))
    reach.map([replace(handle, inode=handle.inode + 2)])
    assert len(caplog.records) == 1
    assert "cannot map staging" in caplog.text
    reach.map([handle])
    reach.map([handle])
    reach.payload(Buffer(region=STAGING, offset=16, length=3))[:] = b"abc"
    assert bytes(region.view(16, 3)) == b"abc"
    region.close()
    assert bytes(reach.payload(Buffer(region=STAGING, offset=16, length=3))) == b"abc"
    reach.close()
    reach.close()
    with pytest.raises(KeyError):
        reach.payload(Buffer(region=STAGING, offset=0, length=8))


def test_each_kind_of_failure_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints()
    for _ in range(3):
        complaints.say("copy a block out", ValueError("one"))
        complaints.say("copy a block out", KeyError("two"))
        complaints.say("copy a block in", ValueError("three"))
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "cannot copy a block out",
        "cannot copy a block out",
        "cannot copy a block in",
    ]
