"""From a directory to a model whose attention is ours, refused when its layers are not what its geometry says."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from kvist.base.errors import CapacityError, ModelError
from kvist.base.units import Bytes
from kvist.engine.backends import attention
from kvist.engine.backends.cpu.layer import FusedLayer, FusedNorm, fuse
from kvist.engine.backends.device import is_out_of_memory, runs_kernels
from kvist.engine.backends.foreign import translated
from kvist.geometry.groups import ModelGeometry


class Differences(TypedDict):
    """What transformers tells of weights that it could not put in their place; the names are its own."""

    missing_keys: Collection[str]
    unexpected_keys: Collection[str]
    mismatched_keys: Collection[tuple[Any, ...]]


def load_model(
    directory: Path, geometry: ModelGeometry, *, dtype: torch.dtype, device: torch.device
) -> PreTrainedModel:
    """Loads weights for inference; reaches no network and runs no code from the directory.

    Where kernels compute, the layers of known models are replaced; see `kvist.engine.backends.cpu.layer`.

    Raises:
        ModelError: the files do not make a model, or not the one that `geometry` describes.
        CapacityError: the memory is not there.
    """
    attention.register()
    disable_progress_bar()  # type: ignore[no-untyped-call]  # the caller shows progress in its own way
    set_verbosity_error()  # type: ignore[no-untyped-call]  # what it would warn of is refused below
    with translated(f"cannot load the model in {directory}"):
        try:
            loaded = AutoModelForCausalLM.from_pretrained(
                directory,
                dtype=dtype,
                attn_implementation=attention.IMPLEMENTATION,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # told in `Differences`, and refused with the tensor's name
            )
            # The stubs do not know that asking for `output_loading_info` makes a pair of the answer.
            model, differences = cast("tuple[PreTrainedModel, Differences]", loaded)
            check_weights(directory, differences)
            check_model(model, geometry)
            torch.nn.Module.to(model, device)
            if runs_kernels(device, dtype):
                fuse(model, _windows(geometry))
            if device.type == "cpu":
                _own(model)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise CapacityError(f"the weights in {directory} do not fit into memory: {error}") from error
            raise
    return model


def _own(model: PreTrainedModel) -> None:
    """Copies the weights out of the files that they are mapped from, one after the other.

    Mapped ones come into memory as they are first read, so that the first step would be charged with them and the
    system would count them among what is free; and whoever shortens a mapped file ends the process that reads it.
    """
    fused = (module for module in model.modules() if isinstance(module, FusedLayer | FusedNorm))
    copied = {id(parameter) for module in fused for parameter in module.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in copied:
            parameter.data = parameter.data.clone()


def check_weights(directory: Path, differences: Differences) -> None:
    """Compares the tensors that the files hold with those that the configuration has a place for.

    Raises:
        ModelError: naming a tensor; transformers would have made it up or left it out, and served nonsense.
    """
    for kind, found in (
        ("missing", differences["missing_keys"]),
        ("of another shape", [key for key, *_ in differences["mismatched_keys"]]),
        ("unknown to the configuration", differences["unexpected_keys"]),
    ):
        if found:
            raise ModelError(
                f"{len(found)} weights in {directory} are {kind}, {min(found)!r} for one: config.json and the weights"
                " are not of one model, or the files are incomplete"
            )


def check_model(model: PreTrainedModel, geometry: ModelGeometry) -> None:
    """Compares each attention module with the KV group its layer belongs to.

    Raises:
        ModelError: naming the layer and both values; serving it would attend to the wrong keys.
    """
    windows = _windows(geometry)
    positions = geometry.positions_max
    modules = [module for module in model.modules() if hasattr(module, "layer_idx") and hasattr(module, "o_proj")]
    found = {attention.layer_index(module): module for module in modules}
    if sorted(found) != sorted(windows):
        raise ModelError(f"the model has attention in layers {sorted(found)}, its configuration says {sorted(windows)}")
    for layer, module in found.items():
        window = _window_of(module, model)
        # A window that no sequence outgrows is full attention.
        if (window if window and window < positions else None) != windows[layer]:
            raise ModelError(f"layer {layer} attends to a window of {window}, its configuration says {windows[layer]}")


def _windows(geometry: ModelGeometry) -> dict[int, int | None]:
    """How far each layer looks back; None means to the beginning."""
    return {layer: group.window for group in geometry.groups for layer in group.layers}


def _window_of(module: torch.nn.Module, model: PreTrainedModel) -> int | None:
    """How far an attention module looks back, as it tells its attention."""
    if hasattr(module, "sliding_window"):
        return cast("int | None", module.sliding_window)
    # Mistral's and Phi-3's ask their configuration. Others, which do not, may find a stray field in theirs.
    config = model.config
    return cast("int | None", config.sliding_window) if hasattr(type(config), "sliding_window") else None


def weights_bytes(model: PreTrainedModel) -> Bytes:
    """Bytes of all parameters, shared ones counted once."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in model.parameters()}
    return Bytes(sum(storages.values()))
