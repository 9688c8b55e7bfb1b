"""What every meter promises: the most that was taken since its start, whether or not it was given back."""

from collections.abc import Callable

import pytest
import torch

from kvist.app.memory import HostMeter
from kvist.app.workspace import Meter
from kvist.engine.backends.device import CudaMeter, meter_of

MIB = 2**20

Take = Callable[[int], None]


def host() -> tuple[Meter, Take]:
    return HostMeter(), lambda size: torch.empty(size, dtype=torch.uint8).fill_(1)


def cuda() -> tuple[Meter, Take]:
    device = torch.device("cuda")
    return CudaMeter(device), lambda size: torch.empty(size, dtype=torch.uint8, device=device).fill_(1)


@pytest.fixture(params=[host, pytest.param(cuda, marks=pytest.mark.cuda)])
def made(request: pytest.FixtureRequest) -> tuple[Meter, Take]:
    return request.param()


class TestMeter:
    def test_what_was_given_back_counts(self, made: tuple[Meter, Take]) -> None:
        meter, take = made
        take(MIB)
        meter.start()
        take(96 * MIB)
        assert 88 * MIB <= meter.taken() <= 112 * MIB

    def test_what_was_taken_before_does_not_count(self, made: tuple[Meter, Take]) -> None:
        meter, take = made
        take(96 * MIB)
        meter.start()
        assert 0 <= meter.taken() <= 16 * MIB

    def test_a_second_start_begins_anew(self, made: tuple[Meter, Take]) -> None:
        meter, take = made
        meter.start()
        take(96 * MIB)
        meter.start()
        take(32 * MIB)
        assert 24 * MIB <= meter.taken() <= 48 * MIB


def test_a_cpu_has_no_memory_of_its_own() -> None:
    assert meter_of(torch.device("cpu")) is None
