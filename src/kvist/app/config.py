"""What `kvist serve` was told, checked field by field before anything is built."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from kvist.app.config_file import merged_tiers, read_config_file
from kvist.app.tier_config import MANY, SHOWN_MAX, StagingBytes, TierConfig, checked
from kvist.app.tier_specs import DiskSpec, DramSpec, PoolSpec, read_tier_flag
from kvist.base.errors import ConfigError

_Count = Annotated[int, Field(ge=1, le=MANY)]


class ServeConfig(TierConfig):
    """Settings of one server and of its tiers; a field left at None takes what the model or the memory allows.

    Attributes:
        model: a fetched model's name, a Hugging Face directory, or a GGUF file.
        host, port: where to listen.
        served_model_name: what requests call the model.
        dtype: of weights, activations and KV.
        device: where the model runs.
        threads: CPU threads for one operation.
        kv_memory: bytes of the KV pool.
        kv_memory_fraction: or this part of what is free once weights and workspace are measured.
        block_tokens: tokens per block.
        step_tokens: most tokens computed in one step.
        sequences_max, waiting_max: sequences running and waiting at once.
        model_tokens_max, prompt_tokens_max, output_tokens_max: bounds on one sequence.
        overcommit: outputs are expected to take 1/overcommit of their bounds.
        audit: whether the ledger is checked after every step.
        drain_seconds: how long running requests may go on after SIGTERM.
    """

    model: str = Field(default="smollm2", min_length=1, max_length=4096)
    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    port: int = Field(default=8000, ge=0, le=65535)
    served_model_name: str | None = Field(default=None, min_length=1, max_length=255)
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    device: Literal["cpu", "cuda"] = "cpu"
    threads: _Count | None = Field(default=None, le=1024)
    kv_memory: Annotated[int, Field(ge=1)] | None = None
    kv_memory_fraction: float | None = Field(default=None, gt=0, le=1)
    block_tokens: int = Field(default=16, ge=1, le=1024)
    step_tokens: _Count = 1024
    sequences_max: int = Field(default=64, ge=1, le=65536)
    waiting_max: int = Field(default=1024, ge=1, le=2**20)
    model_tokens_max: Annotated[int, Field(ge=2, le=MANY)] | None = None
    prompt_tokens_max: _Count | None = None
    output_tokens_max: _Count | None = None
    overcommit: float = Field(default=1.0, ge=1, le=1000)
    audit: bool = False
    drain_seconds: float = Field(default=30.0, ge=0, le=86400)
    staging_memory: StagingBytes = 2**26


_SIZES = ("kv_memory", "staging_memory")


def read_config(fields: dict[str, object]) -> ServeConfig:
    """Checks settings given by name, sizes still as text.

    Args:
        fields: as flags give them; `config` names a file whose settings count where no flag says otherwise, and `tier`
            lists what followed each `--tier`.

    Raises:
        ConfigError: naming the flag and the value, and what is wrong with it.
    """
    flags = {name: value for name, value in fields.items() if value is not None}
    path, tiers = flags.pop("config", None), flags.pop("tier", ())
    file = {} if path is None else read_config_file(Path(str(path)))
    given = {**file, **flags}
    given["tiers"] = _tiers(file.get("tiers", ()), tiers)
    if "kv_memory" in flags or "kv_memory_fraction" in flags:  # either flag replaces whichever the file has
        given = {name: value for name, value in given.items() if name not in _POOL_SIZES or name in flags}
    if "kv_memory" in given and "kv_memory_fraction" in given:
        raise ConfigError("--kv-memory and --kv-memory-fraction both say how large the KV pool is; give one of them")
    return checked(ServeConfig, given, _SIZES, _flag)


_POOL_SIZES = ("kv_memory", "kv_memory_fraction")


def _tiers(file: object, flags: object) -> tuple[DramSpec | DiskSpec | PoolSpec, ...]:
    assert isinstance(file, tuple)
    if not isinstance(flags, list | tuple) or not all(isinstance(text, str) for text in flags):
        raise ConfigError(f"--tier {str(flags)[:SHOWN_MAX]!r}: write dram=SIZE, disk=DIRECTORY:SIZE or pool=URL")
    return merged_tiers(file, tuple(map(read_tier_flag, flags)))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
