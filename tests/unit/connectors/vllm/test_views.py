"""Tensors of every layout, seen as blocks, heads, parts, tokens and content; what cannot be seen so is refused."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fakes.kv_tensors import BLOCKS_ARE_RUNS, LAYOUTS, Laid, memory_of
from kvist.base.errors import ConfigError
from kvist.connectors.vllm.shapes import GroupShape
from kvist.connectors.vllm.views import Inside, LayerView, equally_spaced, group_shape, group_views


def views_of(laid: Laid, *, raw: bool = False) -> tuple[LayerView, ...]:
    tensors = laid.tensors(memory_of(laid.begin + laid.nbytes))
    return group_views(tensors, laid.group(tensors), laid.blocks, laid.inside(raw=raw))


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_shape_and_distances_are_those_of_the_layout(layout: str, parts: int) -> None:
    laid = Laid(layout=layout, parts=parts, begin=64)
    views = views_of(laid)
    assert [view.name for view in views] == ["layer.0", "layer.1", "layer.2"]
    for view in views:
        assert view.shape == (8, 2, parts, 8 // parts, 6)
        assert (view.item_bytes, view.dtype, view.packed) == (2, "bfloat16", "")
        over = laid.strides
        assert view.strides == (over["B"] * parts, over["H"], over["B"], over["N"], 2)
    assert views[1].address - views[0].address == laid.strides["L"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_worker_says_what_it_holds(layout: str) -> None:
    shape = group_shape(views_of(Laid(layout=layout, parts=2)))
    assert shape == GroupShape(layers=("layer.0", "layer.1", "layer.2"), heads=2, tokens=8, content=6, dtype="bfloat16")
    assert group_shape(()).layers == ()


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.bfloat16, "bfloat16"),
        (torch.float16, "float16"),
        (torch.float32, "float32"),
        (torch.uint8, "uint8"),
        (torch.int8, "uint8"),
        (torch.float8_e4m3fn, "uint8"),
        (torch.float8_e5m2, "uint8"),
    ],
)
def test_numbers_of_one_byte_are_bytes(dtype: torch.dtype, name: str) -> None:
    (view, *_) = views_of(Laid(dtype=dtype))
    assert (view.dtype, view.item_bytes) == (name, dtype.itemsize)


def test_numbers_that_no_record_knows_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"layer.0: KV of torch.float64 cannot be stored"):
        views_of(Laid(dtype=torch.float64))


def test_layers_of_one_memory_count_once() -> None:
    laid = Laid()
    tensors = laid.tensors(memory_of(laid.nbytes))
    tensors |= {"shared": tensors["layer.1"], "again": tensors["layer.1"].view(tensors["layer.1"].shape)}
    views = group_views(tensors, laid.group(tensors), laid.blocks, laid.inside())
    assert [view.name for view in views] == ["layer.0", "layer.1", "layer.2"]


def test_layers_of_different_groups_may_share_memory() -> None:
    laid, memory = Laid(), memory_of(Laid().nbytes)
    full, sliding = laid.tensors(memory, "full"), laid.tensors(memory, "sliding")
    both = full | sliding
    first, second = (
        group_views(both, laid.group(names, index), laid.blocks, laid.inside())
        for index, names in enumerate((full, sliding))
    )
    assert [view.address for view in first] == [view.address for view in second]
    assert [view.name for view in second] == ["sliding.0", "sliding.1", "sliding.2"]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("layout", BLOCKS_ARE_RUNS)
def test_packed_blocks_are_runs_of_bytes(layout: str, parts: int) -> None:
    laid = Laid(layout=layout, parts=parts if layout.startswith("L") else 1)
    view = views_of(laid, raw=True)[1]
    assert view.shape == (8, 1, 1, 1, laid.block_bytes)
    assert view.strides == (laid.strides["B"] * laid.parts, *(laid.block_bytes,) * 3, 1)
    assert (view.item_bytes, view.dtype) == (1, "uint8")
    assert group_shape([view]).content == 2 * 8 * 6 * 2


def test_packed_blocks_say_what_they_were() -> None:
    packed = {views_of(laid, raw=True)[0].packed for laid in (Laid(), Laid(parts=2), Laid(layout="LBNHC"))}
    packed.add(views_of(Laid(dtype=torch.float16), raw=True)[0].packed)
    assert len(packed) == 4
    assert "2x1x8x6 torch.bfloat16 at 96/192/12/2" in packed


@pytest.mark.parametrize("layout", ["LHBNC", "BHLNC"])
def test_packed_blocks_in_pieces_are_refused(layout: str) -> None:
    with pytest.raises(ConfigError, match=r"layer.0: the KV is packed for a processor.*is not one run"):
        views_of(Laid(layout=layout), raw=True)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("layout", BLOCKS_ARE_RUNS)
def test_what_fills_a_block_up_is_not_part_of_it(layout: str, raw: bool) -> None:
    laid = Laid(layout=layout, room=256)
    view = views_of(laid, raw=raw)[0]
    assert view.strides[0] == (256 if layout.startswith("L") else 3 * 256)
    assert group_shape([view]).heads * group_shape([view]).tokens * group_shape([view]).content * view.item_bytes == 192


def test_layers_at_one_distance_are_taken_together() -> None:
    laid, memory = Laid(layers=7), memory_of(Laid(layers=7).nbytes)
    tensors = laid.tensors(memory)
    elsewhere = laid.tensors(memory_of(laid.nbytes), "elsewhere")
    names = ["layer.0", "layer.1", "layer.2", "layer.4", "layer.6", "layer.5", "elsewhere.0", "elsewhere.3"]
    views = group_views(tensors | elsewhere, laid.group(names), laid.blocks, laid.inside())
    found = [[view.name for view in together] for together in equally_spaced(views)]
    assert found == [names[:3], names[3:5], ["layer.5"], names[6:]]


def changed(name: str, change: Callable[[torch.Tensor], object]) -> Callable[[dict[str, torch.Tensor]], None]:
    def apply(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = change(tensors[name])

    return apply


BAD: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "no tensor": (lambda tensors: tensors.pop("layer.1"), "no KV tensor for its layer layer.1"),
    "two tensors": (
        changed("layer.1", lambda tensor: [tensor, tensor]),
        "layer.1: .* one tensor .* not <class 'list'>",
    ),
    "five dimensions": (changed("layer.0", lambda tensor: tensor.unsqueeze(0)), r"not a tensor of \(1, 8, 2, 8, 6\)"),
    "too few blocks": (changed("layer.0", lambda tensor: tensor[:7]), "does not hold 8 blocks"),
    "nothing": (changed("layer.0", lambda tensor: tensor[:, :0]), "does not hold 8 blocks"),
    "other heads": (changed("layer.2", lambda tensor: tensor[:, :1]), "layer.2: a block of .* is not of 192 bytes"),
    "scattered numbers": (
        changed("layer.0", lambda tensor: tensor.permute(0, 1, 3, 2)),
        "layer.0: the numbers of one token lie 12 bytes apart",
    ),
    "another shape of as many": (
        changed("layer.1", lambda tensor: tensor.reshape(8, 1, 16, 6)),
        r"different shapes: layer.0 \(2, 1, 8, 6\) bfloat16, layer.1 \(1, 1, 16, 6\)",
    ),
    "another dtype": (changed("layer.1", lambda tensor: tensor.view(torch.float16)), "layer.1 .* float16"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_understood_is_refused_by_name(case: str) -> None:
    spoil, words = BAD[case]
    laid = Laid()
    tensors = laid.tensors(memory_of(laid.nbytes))
    group = laid.group(tensors)
    spoil(tensors)
    with pytest.raises(ConfigError, match=words):
        group_views(tensors, group, laid.blocks, laid.inside())


def test_the_size_of_a_block_must_be_what_the_engine_says() -> None:
    laid = Laid()
    tensors = laid.tensors(memory_of(laid.nbytes))
    with pytest.raises(ConfigError, match="is not of 100 bytes"):
        group_views(tensors, laid.group(tensors), laid.blocks, Inside(raw=False, block_bytes=100))
    with pytest.raises(ConfigError, match="does not hold 0 blocks"):
        group_views(tensors, laid.group(tensors), 0, laid.inside())


def test_a_group_without_layers_here_has_no_views() -> None:
    assert group_views({}, replace(Laid().group(()), index=3), 8, Laid().inside()) == ()
