"""Families whose layers are attention and one feed-forward part, all of one size."""

from dataclasses import dataclass
from typing import Literal

from kvist.geometry import windows
from kvist.geometry.architectures import SUPPORTED
from kvist.geometry.families.parts import (
    Description,
    Family,
    Part,
    Sizes,
    attention_layers,
    needed,
    read_sizes,
    stacked,
)
from kvist.geometry.fields import Fields
from kvist.geometry.heads import HeadRules
from kvist.geometry.weights import Weights, attention, gated, vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What a dense family has beside the projections that all of them have.

    Attributes:
        norms: vectors of the hidden size in every layer.
        norms_heads: whether queries and keys are normalised, all heads with the same numbers.
        bias: of attention: as `attention_bias` says, on the queries, keys and values only, or nowhere.
        bias_of_feed: whether `mlp_bias` is obeyed.
        tied: whether the output embedding is the input embedding where that is left unsaid.
    """

    norms: int = 2
    norms_heads: bool = False
    bias: Literal["as said", "inner", "none"] = "as said"
    bias_of_feed: bool = False
    tied: bool = False


def _dense(rules: HeadRules, rule: windows.WindowRule, habits: Habits) -> Family:
    def family(fields: Fields) -> Description:
        sizes = read_sizes(fields, rules)
        width = needed(fields, "intermediate_size")
        bias = habits.bias_of_feed and fields.flag("mlp_bias", default=False)
        feed = Part(weights=gated(sizes.hidden, width, bias=bias), width=width)
        mixer = Part(weights=_projections(fields, sizes, habits) + _norms_of_heads(fields, sizes, habits))
        keeps = attention_layers(fields, sizes, rule)
        return stacked(sizes, keeps, mixer, [feed] * sizes.layers, norms=habits.norms).done(tied=habits.tied)

    return family


def _projections(fields: Fields, sizes: Sizes, habits: Habits) -> Weights:
    said = habits.bias == "as said" and fields.flag("attention_bias", default=False)
    return attention(sizes.hidden, sizes.heads, bias=said or habits.bias == "inner", bias_out=said)


def _norms_of_heads(fields: Fields, sizes: Sizes, habits: Habits) -> Weights:
    if habits.norms_heads:
        return vectors(2 * sizes.heads.dim)
    if habits is _COHERE and fields.flag("use_qk_norm", default=False):
        return vectors((sizes.heads.query + sizes.heads.kv) * sizes.heads.dim)  # each head with its own
    return Weights()


_COHERE = Habits(norms=1, tied=True)

_SERVED = {
    "llama": Habits(bias_of_feed=True),
    "mistral": Habits(bias="none"),
    "qwen2": Habits(bias="inner"),
    "qwen3": Habits(norms_heads=True),
    "gemma2": Habits(norms=4, tied=True),
    "gemma3_text": Habits(norms=4, norms_heads=True, tied=True),
    "phi3": Habits(bias="none"),
    "smollm3": Habits(bias_of_feed=True, tied=True),
}
"""Those that the engine serves: their heads and windows are its own."""

DENSE: dict[str, Family] = {
    known.model_type: _dense(known.head_rules, known.window_rule, _SERVED[known.model_type]) for known in SUPPORTED
} | {
    "gemma": _dense(
        HeadRules(kv_heads_default=16, kv_heads_nullable=False, head_dim_default=256),
        windows.never,
        Habits(tied=True),
    ),
    "cohere": _dense(HeadRules(), windows.never, _COHERE),
    "cohere2": _dense(
        HeadRules(), windows.all_but_each(4, nth_key="sliding_window_pattern"), Habits(norms=1, tied=True)
    ),
}
"""Family by model type."""
