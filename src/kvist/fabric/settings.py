"""What a fabric is told once, at its start."""

from dataclasses import dataclass, field

from kvist.base.units import Tokens, rounded_up
from kvist.blocks.form import Form
from kvist.blocks.keys import Namespace
from kvist.cost.choice import choose
from kvist.cost.load import Medium
from kvist.cost.prefill import PrefillModel
from kvist.fabric.claims import BookLimits
from kvist.fabric.messages import TierName
from kvist.fabric.policies import (
    Admission,
    AdmitEverything,
    LoadChoice,
    Placement,
    Retention,
    TimeToLive,
    WriteThrough,
)
from kvist.fabric.staging import STAGING_ALIGNMENT
from kvist.tiers.regions import RegionId


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """One tier, as control sees it.

    Attributes:
        name: the same as the tier's own.
        kind: what to expect of its speed before it has been measured.
        limits: of its books, if it is placed; None: it is keyed, and keeps its own.
        region: where its records can be looked at in place; None: they are read into staging.
        lanes: how many loads its movers work on at once.
    """

    name: TierName
    kind: Medium
    limits: BookLimits | None = None
    region: RegionId | None = None
    lanes: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Which KV to keep, where, how long, and how much of it to load."""

    admission: Admission = field(default_factory=AdmitEverything)
    placement: Placement = field(default_factory=WriteThrough)
    retention: Retention = field(default_factory=TimeToLive)
    load_choice: LoadChoice = choose


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSettings:
    """Shapes, tiers and bounds.

    Attributes:
        namespace: of the model, until `Fabric.renew` gives another one.
        block_tokens: tokens per block.
        windows: by group; None: full attention.
        forms: by group: what a record looks like.
        tiers: fastest first.
        prefill: how long computing is expected to take before it has been measured.
        staging: the region that loads and stores pass through.
        staging_bytes: its size.
        policies: what to keep, where and how long.
        piece_records: records per job: few enough for the engine's copying to overlap with what is still loading.
        question_s_min, question_s_max: a keyed tier has this long to answer before a plan is made without it; in
            between, four times what it usually takes.
        stall_s: a tier that has jobs and ends none for so long is hung: its breaker opens.
        tier_share: at most this share of staging is held by the jobs of one tier, so that a hung one leaves room.
        store_share: at most this share of staging is held by what is to be stored, so that loads find room.
        known_max: of how many records of a group a keyed tier is remembered to have them.
    """

    namespace: Namespace
    block_tokens: int
    windows: tuple[Tokens | None, ...]
    forms: tuple[Form, ...]
    tiers: tuple[TierSettings, ...]
    prefill: PrefillModel
    staging: RegionId
    staging_bytes: int
    policies: Policies = field(default_factory=Policies)
    piece_records: int = 16
    question_s_min: float = 0.02
    question_s_max: float = 0.25
    stall_s: float = 2.0
    tier_share: float = 0.25
    store_share: float = 0.5
    known_max: int = 32768

    @property
    def staging_extent_bytes(self) -> int:
        """How staging is cut: room for a piece of the longest records, or for fewer where staging is small."""
        longest = max(rounded_up(form.record_bytes, STAGING_ALIGNMENT) for form in self.forms)
        share = self.staging_bytes // (longest * 8 * len(self.forms))
        return longest * max(1, min(self.piece_records, share))
