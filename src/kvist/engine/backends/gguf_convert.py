"""From a GGUF file to a Hugging Face directory, dequantised once: config.json, weights in bf16, tokenizer.

Knows the order of the work and what transformers leaves wrong in the configuration; the header, the facts and the
tokenizer have modules of their own. Reads nothing but the file, opens no connection, runs no code from the model.
"""

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from logging import ERROR
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging
from transformers.utils.quantization_config import GgufConfig

from kvist.base.errors import ModelError
from kvist.engine.backends.foreign import translated
from kvist.engine.backends.gguf_facts import check_convertible, refuse_losses
from kvist.engine.backends.gguf_header import GgufHeader, read_header
from kvist.engine.backends.gguf_slim import write_slim
from kvist.engine.backends.gguf_tokenizer import check_vocabulary, save_tokenizer
from kvist.geometry.config import geometry_from_config
from kvist.geometry.gguf_metadata import geometry_from_gguf

_RUNTIME_KEYS = ("_model_name_or_path", "_name_or_path")


def convert(gguf: Path, target: Path) -> None:
    """Writes a GGUF as a Hugging Face directory. Takes seconds to minutes, and memory for the weights in fp32.

    What transformers would print on standard error meanwhile is discarded, whoever else prints there included.

    Args:
        gguf: the file; whatever lies beside it is ignored.
        target: directory to create, or an empty one; on failure its contents are worthless.

    Raises:
        ModelError: the file is damaged, of an unsupported kind, or can not be converted faithfully.
        OSError: there is no room for the result.
    """
    header = read_header(gguf)
    check_convertible(header, gguf)
    with translated(f"{gguf} can not be converted"), _alone(gguf, target) as source, _silence():
        check_vocabulary(header, gguf)
        _save_weights(source, header, target)
        config = _mend_config(target / "config.json", header)
        refuse_losses(header, config, gguf)
        refuse_another_geometry(header, config, gguf)
        save_tokenizer(source, header, target, model_tokens_max=config["max_position_embeddings"])


@contextlib.contextmanager
def _alone(gguf: Path, target: Path) -> Iterator[Path]:
    """The file under a plain name in a directory of its own, where transformers finds no other model's files."""
    folder = target / "source"
    folder.mkdir(parents=True)
    link = folder / "model.gguf"
    link.symlink_to(gguf.resolve())
    yield link
    link.unlink()
    folder.rmdir()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keeps the bars and remarks of transformers from standard error, where Kvist draws its own."""
    level = logging.get_verbosity()
    logging.set_verbosity(ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)


def _save_weights(source: Path, header: GgufHeader, target: Path) -> None:
    slim = source.with_name("weights.gguf")
    write_slim(source, header, slim)
    load: Any = AutoModelForCausalLM.from_pretrained  # its types do not know that it can return a pair
    model, report = load(
        str(source.parent),
        gguf_file=slim.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    slim.unlink()
    # transformers fills what the file lacks with random numbers, and drops what it does not know.
    absent = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    taken = sum(parameter.numel() for parameter in model.parameters())
    if absent or taken != header.parameters:
        lack = f", but {absent[0]} is not there" if absent else ""
        raise ModelError(
            f"{source.resolve()} is not whole: it holds {header.parameters} numbers and its model takes {taken}{lack}"
        )
    model.save_pretrained(str(target))


def refuse_another_geometry(header: GgufHeader, config: Mapping[str, object], gguf: Path) -> None:
    """Compares the shapes, windows and rotation of the converted model with those that the GGUF itself tells.

    Raises:
        ModelError: they differ; served so, the model would attend to the wrong keys.
    """
    told = geometry_from_gguf(header.fields, tensor_names=header.tensors)
    made = geometry_from_config(config)
    for field in fields(told):
        before, after = getattr(told, field.name), getattr(made, field.name)
        # The file's dtype is that of its quantised numbers; the conversion chooses its own.
        if field.name != "dtype" and before != after:
            raise ModelError(f"{gguf}: {field.name} is {before}, and the conversion made {after} of it")


def _mend_config(path: Path, header: GgufHeader) -> dict[str, Any]:
    """Puts right what the conversion leaves wrong in config.json, and returns its contents."""
    config: dict[str, Any] = _shortened(json.loads(path.read_text(encoding="utf-8")))
    for key in _RUNTIME_KEYS:
        config.pop(key, None)
    if header.architecture == "phi3" and config.get("sliding_window") is None:
        config["sliding_window"] = header.of_model("attention.sliding_window")
    path.write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    return config


def _shortened(value: Any) -> Any:  # noqa: ANN401  (whatever JSON holds)
    """The same configuration with each float32 that was spelled out as a double in its shortest form.

    A GGUF keeps 1e-05 as a float32, and reading that as a double gives 9.999999747378752e-06.
    """
    if isinstance(value, dict):
        return {key: _shortened(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shortened(each) for each in value]
    with np.errstate(over="ignore"):
        return float(str(np.float32(value))) if isinstance(value, float) and np.float32(value) == value else value
