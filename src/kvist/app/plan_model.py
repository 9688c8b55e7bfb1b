"""What `--model` of `kvist plan` may be, and what can be planned from it. Downloads nothing and loads no weights.

a directory      its config.json, and the lengths of its weights if they are there
config.json      the file alone; weights are counted from it
a GGUF file      its header: the geometry, and the bytes of its tensors
a name           the published configuration in the catalogue
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kvist.app.catalogue_data import unknown
from kvist.app.published_models import PublishedModel, published, published_models
from kvist.app.safetensors_check import INDEX, SINGLE, check_weights
from kvist.base.errors import ModelError
from kvist.base.units import Bytes, Tokens
from kvist.engine.backends.gguf_header import read_header
from kvist.geometry.config import geometry_from_config
from kvist.geometry.fields import Fields, show
from kvist.geometry.layers import ModelLayers
from kvist.geometry.published import model_layers, model_layers_from_gguf

_CONFIG = "config.json"
_CONFIG_BYTES_MAX = 16 * 2**20
_GGUF_MAGIC = b"GGUF"
_STATE_DTYPE = "mamba_ssm_dtype"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A model to plan for.

    Attributes:
        name: as it is called in what is shown.
        given: as engines are to be told it; own: as Kvist's own is.
        layers: what every layer keeps, and what the weights are.
        state_dtype: of recurrent states, where the configuration says it; None: that of the weights.
        weights_bytes: of the files that hold them; None: there are none here, and they are counted.
        weights_from: where that figure is from, in words.
        positions_kvist: longest sequence that Kvist's own engine would take, where it serves the model: keys of some
            models depend on how long the sequence becomes, and are kept only as long as they do not; None: it does not
            serve it, or takes as many as the layers say.
    """

    name: str
    given: str
    own: str
    layers: ModelLayers
    state_dtype: str | None
    weights_bytes: Bytes | None
    weights_from: str
    positions_kvist: Tokens | None = None


def planned_model(given: str, *, weights: Bytes | None = None) -> PlannedModel:
    """Finds and reads a model.

    Args:
        given: a directory, a config.json, a GGUF file, or a name of the catalogue.
        weights: bytes of all weights, where the caller knows better; None: those of the files, else counted.

    Raises:
        ModelError: it is not here, damaged, or of a family that is not known.
        ConfigError: there is no such name in the catalogue.
    """
    known = published(given)
    if known is not None:
        return _from_catalogue(known, given, weights)
    try:
        path = Path(given).expanduser()
        is_directory, is_file = bool(given) and path.is_dir(), path.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"{show(given)} can not be read: {reason}") from error
    if is_directory:
        return _from_directory(path, weights)
    if is_file:
        return _from_file(path, weights)
    if path.is_symlink():
        raise ModelError(f"{show(given)} is a link to nowhere; give what it should lead to")
    remedy = "or give a directory with config.json, a config.json, or a .gguf file"
    raise unknown("file, directory or model", given, list(published_models()), remedy)


def _from_catalogue(known: PublishedModel, given: str, weights: Bytes | None) -> PlannedModel:
    found = _from_config(known.config, weights, "counted" if weights is None else "given")
    return replace(found, name=given, given=known.repo, own=known.also[0] if known.also else "DIR")


def _from_directory(directory: Path, weights: Bytes | None) -> PlannedModel:
    if not (directory / _CONFIG).exists():
        raise ModelError(f"{directory} is no model: it has no {_CONFIG}")
    config = _parsed(directory / _CONFIG)
    if weights is not None:
        found = _from_config(config, weights, "given")
    else:
        stored = _stored(directory)
        found = _from_config(config, stored, "counted" if stored is None else "the files")
    return _named(found, directory)


def _stored(directory: Path) -> Bytes | None:
    """Bytes of the safetensors of a directory; None if there are none."""
    if not any((directory / name).exists() for name in (SINGLE, INDEX)):
        return None
    try:
        return Bytes(sum(path.stat().st_size for path in check_weights(directory)))
    except ModelError as error:
        raise ModelError(f"{error}; or say how large the weights are with --weights") from error


def _from_file(path: Path, weights: Bytes | None) -> PlannedModel:
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
    except OSError as error:
        raise ModelError(f"{path} can not be read: {error.strerror or error}") from error
    if is_gguf or path.suffix.lower() == ".gguf":
        return _from_gguf(path, weights)
    found = _from_config(_parsed(path), weights, "counted" if weights is None else "given")
    return _named(found, path.parent if path.name == _CONFIG else path.with_suffix(""))


def _from_gguf(path: Path, weights: Bytes | None) -> PlannedModel:
    header = read_header(path)
    parts = header.fields.get("split.count", 0)
    if parts not in (0, 1) and weights is None:
        raise ModelError(f"{path} is one of {parts} parts; say how large all weights are with --weights")
    stored = Bytes(sum(tensor.size for tensor in header.tensors.values())) if weights is None else weights
    layers = model_layers_from_gguf(header.fields, tensor_names=header.tensors)
    found = PlannedModel(
        name="",
        given="",
        own="",
        layers=layers,
        state_dtype=None,
        weights_bytes=stored,
        weights_from="the file" if weights is None else "given",
    )
    return replace(_named(found, path), name=path.stem)


def _from_config(config: Mapping[str, object], weights: Bytes | None, weights_from: str) -> PlannedModel:
    return PlannedModel(
        name="",
        given="",
        own="",
        layers=model_layers(config, weights_known=weights is not None),
        state_dtype=_state_dtype(Fields(values=config, source=_CONFIG)),
        weights_bytes=weights,
        weights_from=weights_from,
        positions_kvist=_positions_kvist(config),
    )


def _positions_kvist(config: Mapping[str, object]) -> Tokens | None:
    try:
        return geometry_from_config(config).positions_max
    except ModelError:
        return None


def _state_dtype(fields: Fields) -> str | None:
    """What the configuration, or the language model's within it, says of recurrent states."""
    for each in (fields.nested("text_config"), fields):
        if each.is_set(_STATE_DTYPE):
            return each.text(_STATE_DTYPE)
    return None


def _named(model: PlannedModel, path: Path) -> PlannedModel:
    return replace(model, name=path.resolve().name, given=str(path), own=str(path))


def _parsed(path: Path) -> Mapping[str, object]:
    """The fields of a config.json.

    Raises:
        ModelError: it can not be read, is too long to be one, or holds no JSON object.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_CONFIG_BYTES_MAX + 1)
        if len(content) > _CONFIG_BYTES_MAX:
            raise ModelError(f"{path} is longer than {_CONFIG_BYTES_MAX} bytes; that is no {_CONFIG}")
        values = json.loads(content)
    except OSError as error:
        raise ModelError(f"{path} can not be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is no {_CONFIG}: it should hold JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} is no {_CONFIG}: it should hold a JSON object and holds {show(values)}")
    return values
