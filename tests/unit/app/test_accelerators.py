"""Every accelerator of the catalogue has figures that can be, each with its source."""

import pytest
from pydantic import ValidationError

from kvist.app.accelerators import Accelerator, accelerator, accelerators
from kvist.base.errors import ConfigError

FIGURES = ("memory", "bandwidth", "bf16_tflops", "fp8_tflops", "host_link")
NAMES = list(accelerators())


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source(name: str) -> None:
    entry = accelerators()[name]
    sourced = [field for source in entry.sources for field in source.of]
    assert set(sourced) == {figure for figure in FIGURES if getattr(entry, figure) is not None}
    assert len(sourced) == len(set(sourced))


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_can_be(name: str) -> None:
    machine = accelerators()[name].machine(name)
    assert 8 * 2**30 < machine.bytes_total < 512 * 2**30
    assert 0.1e12 < machine.bytes_per_s < 20e12
    assert 50e12 < machine.flops_bf16 < 10e15
    assert machine.flops_fp8 is None or 1.9 < machine.flops_fp8 / machine.flops_bf16 < 2.1
    # PCIe of the fourth and the fifth generation, sixteen lanes, in one direction.
    assert machine.host_link_bytes_per_s in (32e9, 64e9)
    assert machine.host_link_bytes_per_s < machine.bytes_per_s


@pytest.mark.parametrize("name", NAMES)
def test_the_memory_is_what_is_sold_or_a_little_less(name: str) -> None:
    """What drivers keep for themselves is at most a tenth; no figure is in another unit."""
    entry = accelerators()[name]
    sold = int(entry.title.rpartition("(")[2].replace("SXM, ", "").removesuffix(" GB)"))
    assert 0.9 * sold * 2**30 < entry.memory < 1.07 * sold * 2**30


@pytest.mark.parametrize("name", ["h200", "H200", "H100 SXM", "h100_sxm", " l4 "])
def test_capitals_and_blanks_make_no_difference(name: str) -> None:
    assert accelerator(name).name in NAMES


@pytest.mark.parametrize("name", ["", "h20", "voodoo2", "../h200", "\0", "h200\n\n[x]", "x" * 10_000])
def test_an_unknown_gpu_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no GPU .*h200, h100-sxm.*--gpu-memory"):
        accelerator(name)


@pytest.mark.parametrize(
    "change",
    [
        {"memory": 0},
        {"memory": "-1GiB"},
        {"memory": "much"},
        {"bandwidth": None},
        {"bf16_tflops": -1},
        {"bf16_tflops": float("nan")},
        {"fp8_tflops": 0},
        {"host_link": "0GB"},
        {"colour": "green"},
    ],
    ids=str,
)
def test_figures_that_cannot_be_are_refused(change: dict[str, object]) -> None:
    good = accelerators()["h200"].model_dump()
    assert Accelerator.model_validate(good).memory == accelerators()["h200"].memory
    with pytest.raises((ValidationError, ConfigError)):
        Accelerator.model_validate({**good, **change})
