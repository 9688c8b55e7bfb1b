"""What engines of tests are made of and asked for."""

from dataclasses import dataclass
from itertools import takewhile

from kvist.base.ids import RequestId, TenantId, TokenId
from kvist.base.units import Bytes, Tokens
from kvist.blocks.window import Retention
from kvist.engine.admission import AdmissionRules
from kvist.engine.messages import EngineLimits
from kvist.engine.request import Request, Sampling
from kvist.engine.settings import EngineSettings
from kvist.geometry.groups import KvGroup

VOCAB = 3
"""Few tokens, so that prompts and answers meet by chance."""


def groups_of(windows: tuple[int | None, ...]) -> tuple[KvGroup, ...]:
    """One KV group of one layer for each window."""
    return tuple(
        KvGroup(layers=(layer,), kv_heads=1, head_dim_k=1, head_dim_v=1, window=None if w is None else Tokens(w))
        for layer, w in enumerate(windows)
    )


def request_of(
    name: str, prompt: tuple[int, ...], *, output: int = 4, tenant: str = "blue", seed: int = 0, stops: tuple = ()
) -> Request:
    """A request, with what most tests do not care about filled in."""
    return Request(
        id=RequestId(name),
        tenant=TenantId(tenant),
        prompt=tuple(map(TokenId, prompt)),
        output_tokens_max=Tokens(output),
        sampling=Sampling(seed=seed),
        stop_tokens=frozenset(map(TokenId, stops)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What an engine is made of; by KV group: windows, and the blocks of each pool."""

    windows: tuple[int | None, ...] = (None,)
    blocks: tuple[int, ...] = (64,)
    block_tokens: int = 4
    step_tokens: int = 16
    sequences_max: int = 4
    waiting_max: int = 1000
    overcommit: float = 1.0
    offload_prompt_only: bool = False
    land_bytes_max: int = 16 * 2**20
    retention: Retention = Retention(checkpoint_tokens=Tokens(32), slack_tokens=Tokens(8))

    @property
    def rules(self) -> AdmissionRules:
        """The figures of admission for this shape."""
        return AdmissionRules(
            groups=groups_of(self.windows),
            block_tokens=self.block_tokens,
            step_tokens=self.step_tokens,
            overcommit=self.overcommit,
        )

    @property
    def longest(self) -> Tokens:
        """The longest sequence that fits alone."""
        rules = self.rules
        fits = takewhile(
            lambda n: all(
                most <= have for most, have in zip(rules.peak(n, rules.step_tokens), self.blocks, strict=True)
            ),
            range(1, 1000),
        )
        return Tokens(max(fits, default=0))

    @property
    def limits(self) -> EngineLimits:
        """Bounds that refuse only what can never fit."""
        return EngineLimits(
            model_tokens_max=Tokens(2000),
            prompt_tokens_max=Tokens(1000),
            output_tokens_max=Tokens(1000),
            longest_request_tokens=self.longest,
            sequences_max=self.sequences_max,
            waiting_max=self.waiting_max,
            vocab_size=VOCAB,
        )

    @property
    def settings(self) -> EngineSettings:
        """The engine's settings for this shape."""
        return EngineSettings(
            groups=groups_of(self.windows),
            kv_bytes=Bytes(0),
            kv_bytes_per_token=Bytes(0),
            block_tokens=self.block_tokens,
            step_tokens=self.step_tokens,
            sequences_max=self.sequences_max,
            overcommit=self.overcommit,
            retention=self.retention,
            offload_prompt_only=self.offload_prompt_only,
            land_bytes_max=Bytes(self.land_bytes_max),
        )
