"""What a fabric is told once, at its start."""

from dataclasses import dataclass
from typing import Literal

from kvist.base.units import Tokens
from kvist.blocks.form import Form
from kvist.blocks.keys import Namespace
from kvist.fabric.messages import TierName
from kvist.tiers.regions import RegionId

TierKind = Literal["dram", "disk", "pool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSettings:
    """Shapes, tiers and bounds.

    Attributes:
        namespace: of the model.
        block_tokens: tokens per block.
        windows: by group; None: full attention.
        forms: by group: what a record looks like.
        staging: the region that loads and stores pass through.
        staging_bytes: its size.
        piece_records: records per job: few enough for the engine's copying to overlap with what is still loading.
        question_s_min: a keyed tier has at least so long to answer before it is planned without it.
        stall_s: a job that takes longer than this, and has no deadline of its own, counts as a time-out of its tier.
        tier_share: at most this share of staging is held by the jobs of one tier, so that a hung one leaves room.
    """

    namespace: Namespace
    block_tokens: int
    windows: tuple[Tokens | None, ...]
    forms: tuple[Form, ...]
    staging: RegionId
    staging_bytes: int
    piece_records: int = 16
    question_s_min: float = 0.02
    stall_s: float = 2.0
    tier_share: float = 0.25
