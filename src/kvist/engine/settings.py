"""The engine's settings, resolved before it is built and never changed."""

from dataclasses import dataclass

from kvist.base.units import Bytes
from kvist.blocks.window import Retention
from kvist.geometry.groups import KvGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Bounds and choices of one engine.

    Attributes:
        groups: the model's KV groups.
        kv_bytes: size of the KV pool.
        kv_bytes_per_token: of one token in all layers.
        block_tokens: tokens per block.
        step_tokens: most tokens computed in one step, decodes included; at least sequences_max.
        sequences_max: sequences running at once.
        overcommit: at least 1; outputs are expected to take 1/overcommit of their bounds.
        retention: which passed window blocks stay cached.
        offload_prompt_only: whether blocks with output tokens in them are not stored below.
        land_bytes_max: about so many bytes of loaded blocks are copied in per step while others compute.
        audits: whether the ledger is checked after every step, which costs time in proportion to the pool.
    """

    groups: tuple[KvGroup, ...]
    kv_bytes: Bytes
    kv_bytes_per_token: Bytes
    block_tokens: int = 16
    step_tokens: int = 1024
    sequences_max: int = 64
    overcommit: float = 1.0
    retention: Retention = Retention()
    offload_prompt_only: bool = False
    land_bytes_max: Bytes = Bytes(16 * 2**20)
    audits: bool = False
