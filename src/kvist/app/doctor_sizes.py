"""Whether a model's KV can be stored, and the tiers hold more of it than vLLM, and one prompt at all.

Reads the model's configuration.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvist.app.doctor_findings import Finding, note, ok, problem, shown
from kvist.app.tier_specs import DiskSpec, DramSpec, PoolSpec
from kvist.base.errors import ModelError
from kvist.base.units import format_bytes
from kvist.geometry.groups import Dtype, ModelGeometry
from kvist.geometry.layers import RecurrentLayer
from kvist.geometry.published import model_layers

CHECK = "sizes"
MODEL = "model"
_CONFIG = "config.json"
_CONFIG_BYTES_MAX = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What KV of one engine takes.

    Attributes:
        geometry: of the model.
        prompt_tokens: of the longest sequence.
        own_bytes: of vLLM's own KV memory; None: not known.
        cache_dtype: as vLLM calls the dtype of KV; "auto": that of the weights.
    """

    geometry: ModelGeometry
    prompt_tokens: int
    own_bytes: int | None = None
    cache_dtype: str = "auto"

    def bytes_of(self, tokens: int) -> int:
        """KV bytes of one sequence of so many tokens; of windows only what its end needs."""
        dtype: Dtype = "float32" if self.cache_dtype == "auto" and self.geometry.dtype == "float32" else "bfloat16"
        whole = sum(
            group.bytes_per_token(dtype) * (tokens if group.window is None else min(tokens, group.window))
            for group in self.geometry.groups
        )
        return whole // 2 if self.cache_dtype.startswith("fp8") else whole


def size_findings(specs: Sequence[DramSpec | DiskSpec | PoolSpec], needs: Needs) -> Iterator[Finding]:
    """Compares tiers with what they are for."""
    prompt = needs.bytes_of(needs.prompt_tokens)
    bounded = [spec for spec in specs if not isinstance(spec, PoolSpec)]
    for spec in bounded:
        size = min(spec.bytes, spec.tenant_bytes or spec.bytes)
        what = "tenant_bytes" if size < spec.bytes else "bytes"
        if size < prompt:
            text = (
                f"tier {spec.name}: {format_bytes(size)} ({what}) do not hold the KV of one prompt of "
                f"{needs.prompt_tokens:,} tokens, about {format_bytes(prompt)}"
            )
            yield note(CHECK, text, f"give it {format_bytes(4 * prompt)} or more, if prompts are that long")
        else:
            count = size // prompt
            text = f"tier {spec.name} holds about {count:,} prompts of {needs.prompt_tokens:,} tokens"
            yield ok(CHECK, text if count > 1 else text.replace("prompts", "prompt"))
    if needs.own_bytes is None or len(bounded) < len(specs) or not bounded:
        return
    largest = max(bounded, key=lambda spec: spec.bytes)
    if largest.bytes < needs.own_bytes:
        own = format_bytes(needs.own_bytes)
        text = (
            f"the largest tier, {largest.name}, has {format_bytes(largest.bytes)}, and vLLM's own KV memory about "
            f"{own}: while vLLM runs, tiers have little that it does not have itself"
        )
        yield note(CHECK, text, f"give a tier several times {own}")


def model_findings(config: Mapping[str, object]) -> Iterator[Finding]:
    """Looks at what the layers of a model keep, where its family is known."""
    try:
        layers = model_layers(config).layers
    except ModelError:
        return
    recurrent = sum(isinstance(each, RecurrentLayer) for each in layers)
    if recurrent:
        text = (
            f"{recurrent} of the model's {len(layers)} layers keep recurrent state, which Kvist cannot store, so vLLM "
            "does not start with it"
        )
        yield problem(MODEL, text, "run this model without Kvist")


def read_config(model: str, environment: Mapping[str, str]) -> Mapping[str, object]:
    """A model's configuration, found by its directory or by its name at the hub where that was downloaded.

    Raises:
        ModelError: it is not here, or is no JSON object.
    """
    try:
        path = next((each / _CONFIG for each in _directories(model, environment) if (each / _CONFIG).is_file()), None)
        if path is None:
            raise ModelError(f"there is no {_CONFIG} of {shown(model)} here; name the model's directory with --model")
        with path.open("rb") as file:
            content: object = json.loads(file.read(_CONFIG_BYTES_MAX))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"the configuration of {shown(model)} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"the configuration of {shown(model)} is no JSON object: {shown(content)}")
    return content


def _directories(model: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Where a model may be: the newest snapshot of the hub's cache last."""
    yield Path(model)
    if "/" not in model.strip("/") or model.startswith((".", "/", "~")):
        return
    home = Path(environment.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(environment.get("HF_HUB_CACHE") or home / "hub")
    snapshots = hub / f"models--{model.replace('/', '--')}" / "snapshots"
    if snapshots.is_dir():
        yield from sorted(snapshots.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
