"""Which of transformers' models are put together in a way that is known, read off into plain data.

A model is known when its parts are of exactly the classes that `KINDS` tells, and nothing was added to them. Whoever
computes it in another way (see `kvist.engine.backends.cpu.layer`) gets all that the computation depends on in a
`ModelParts`; about every other model nothing is said, and it stays as transformers made it.

    x ─┬─ norm ─ q,k,v ─ (head norms) ─ (rotation) ─ attention ─ output ─ (norm) ─ + ─┬─ norm ─ gate,up ─ ... ─ + ─
       └─────────────────────────────────────────────────────────────────────────────┘└──────────────────────┘
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn
from transformers import PreTrainedModel
from transformers.activations import GELUActivation, GELUTanh, SiLUActivation

Foreign = Any
"""A module of transformers' own, whose attributes have no known types."""

Activation = Literal["silu", "gelu_tanh", "gelu"]

ACTIVATIONS: Mapping[type[nn.Module], Activation] = {
    SiLUActivation: "silu",
    nn.SiLU: "silu",
    GELUTanh: "gelu_tanh",
    GELUActivation: "gelu",
}
"""What modules of these classes compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How the decoder layers of one family are put together.

    Attributes:
        prefix: how the names of the family's classes begin.
        norm_offset: added to a norm's weight before it multiplies.
        norms_after: whether attention and mlp are normalised once more before they are added.
        head_norms: whether queries and keys are normalised head by head.
        is_joint: whether q, k, v are one projection already, and gate and up.
    """

    prefix: str
    norm_offset: float = 0.0
    norms_after: bool = False
    head_norms: bool = False
    is_joint: bool = False


KINDS: Mapping[str, Kind] = {
    f"transformers.models.{name}.modeling_{name}": kind
    for name, kind in {
        "gemma2": Kind(prefix="Gemma2", norm_offset=1.0, norms_after=True),
        "gemma3": Kind(prefix="Gemma3", norm_offset=1.0, norms_after=True, head_norms=True),
        "llama": Kind(prefix="Llama"),
        "mistral": Kind(prefix="Mistral"),
        "phi3": Kind(prefix="Phi3", is_joint=True),
        "qwen2": Kind(prefix="Qwen2"),
        "qwen3": Kind(prefix="Qwen3", head_norms=True),
        "smollm3": Kind(prefix="SmolLM3"),
    }.items()
}
"""By the module that defines a family's layers; others may look alike and compute otherwise.

Names and not classes, because importing all families takes longer than loading a small model.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Root-mean-square normalisation: x / sqrt(mean(x**2) + epsilon) * (offset + weight), weight [width]."""

    weight: nn.Parameter
    epsilon: float
    offset: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """One decoder layer.

    Attributes:
        index: of the layer in the model.
        heads: of the queries; kv_heads: of keys and values; each `head_dim` wide.
        before_attention: normalises what q, k and v are made of.
        after_attention: normalises what the output projection gives, before it is added; None: nothing does.
        before_mlp: normalises what gate and up are made of.
        after_mlp: normalises what the down projection gives, before it is added; None: nothing does.
        query_norm: normalises each head's query; None: nothing does. key_norm likewise.
        qkv: one projection, or three, whose outputs lie side by side: queries, keys, values.
        output: projection of attention's result.
        gate_up: one projection, or two, whose outputs lie side by side: gate, up.
        down: projection of activation(gate) * up.
        activation: which.
        is_rotated: whether queries and keys are rotated by their position.
        scaling: factor on attention's scores.
        softcap: scores are squashed into (-softcap, softcap); None leaves them.
    """

    index: int
    heads: int
    kv_heads: int
    head_dim: int
    before_attention: Norm
    after_attention: Norm | None
    before_mlp: Norm
    after_mlp: Norm | None
    query_norm: Norm | None
    key_norm: Norm | None
    qkv: tuple[nn.Linear, ...]
    output: nn.Linear
    gate_up: tuple[nn.Linear, ...]
    down: nn.Linear
    activation: Activation
    is_rotated: bool
    scaling: float
    softcap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """A known model.

    Attributes:
        decoder: the module that holds `layers`, `norm` and `rotary_emb`; `layer_parts` knows all of its layers.
        norm: of what the last layer gives.
        head: from there to logits, without a bias; its weight may be the embedding's.
    """

    decoder: Foreign
    norm: Norm
    head: nn.Linear


def parts_of(model: PreTrainedModel) -> ModelParts | None:
    """Reads off a model's parts; None when one of them is not known."""
    foreign: Foreign = model
    decoder, head = foreign.get_decoder(), foreign.get_output_embeddings()
    layers = list(getattr(decoder, "layers", ()))
    kind = _kind_of(layers[0]) if layers else None
    if kind is None or type(head) is not nn.Linear or getattr(head, "bias", None) is not None:
        return None
    classes = {name: type(getattr(decoder, name)) for name in ("norm", "rotary_emb")}
    if classes != {"norm": _class(layers[0], "RMSNorm"), "rotary_emb": _class(layers[0], "RotaryEmbedding")}:
        return None
    found = [layer_parts(layer) for layer in layers]
    indices = [layer.index for layer in found if layer is not None]
    return (
        ModelParts(decoder=decoder, norm=_norm(decoder.norm, kind), head=head)
        if indices == [*range(len(found))]
        else None
    )


def _kind_of(layer: nn.Module) -> Kind | None:
    kind = KINDS.get(type(layer).__module__)
    return kind if kind and type(layer) is _class(layer, "DecoderLayer") else None


def _class(layer: nn.Module, name: str) -> object:
    """The class of a layer's family that is called so."""
    module = type(layer).__module__
    return getattr(sys.modules[module], KINDS[module].prefix + name)


def layer_parts(layer: nn.Module) -> LayerParts | None:
    """Reads off a decoder layer; None when something of it is not known."""
    kind = _kind_of(layer)
    if kind is None or not _is_as_told(layer, kind):
        return None
    attention: Foreign = layer.self_attn
    mlp: Foreign = layer.mlp
    activation = ACTIVATIONS.get(type(mlp.activation_fn if kind.is_joint else mlp.act_fn))
    qkv = (attention.qkv_proj,) if kind.is_joint else (attention.q_proj, attention.k_proj, attention.v_proj)
    gate_up = (mlp.gate_up_proj,) if kind.is_joint else (mlp.gate_proj, mlp.up_proj)
    if activation is None or not attention.is_causal or not (_is_joinable(qkv) and _is_joinable(gate_up)):
        return None
    norms = [_norm(layer.get_submodule(name), kind) for name in _norm_names(kind)]
    heads = attention.o_proj.in_features // attention.head_dim
    return LayerParts(
        index=attention.layer_idx,
        heads=heads,
        kv_heads=(sum(each.out_features for each in qkv) // attention.head_dim - heads) // 2,
        head_dim=attention.head_dim,
        before_attention=norms[0],
        after_attention=norms[1] if kind.norms_after else None,
        before_mlp=norms[2] if kind.norms_after else norms[1],
        after_mlp=norms[3] if kind.norms_after else None,
        query_norm=_norm(attention.q_norm, kind) if kind.head_norms else None,
        key_norm=_norm(attention.k_norm, kind) if kind.head_norms else None,
        qkv=qkv,
        output=attention.o_proj,
        gate_up=gate_up,
        down=mlp.down_proj,
        activation=activation,
        is_rotated=bool(getattr(attention, "use_rope", True)),  # SmolLM3 says so layer by layer
        scaling=float(attention.scaling),
        softcap=getattr(attention, "attn_logit_softcapping", None),
    )


def _is_as_told(layer: nn.Module, kind: Kind) -> bool:
    """Whether a layer consists of what its kind says, and of nothing else that computes."""
    norm = _class(layer, "RMSNorm")
    of_layer = dict.fromkeys(_norm_names(kind), norm)
    of_layer |= {"self_attn": _class(layer, "Attention"), "mlp": _class(layer, "MLP")}
    of_attention = dict.fromkeys(("q_norm", "k_norm") if kind.head_norms else (), norm)
    of_attention |= dict.fromkeys(("qkv_proj",) if kind.is_joint else ("q_proj", "k_proj", "v_proj"), nn.Linear)
    of_mlp = dict.fromkeys(("gate_up_proj",) if kind.is_joint else ("gate_proj", "up_proj"), nn.Linear)
    last = {"o_proj": nn.Linear}, {"down_proj": nn.Linear}
    return (
        _classes(layer) == of_layer
        and _classes(layer.get_submodule("self_attn")) == of_attention | last[0]
        and _classes(layer.get_submodule("mlp")) == of_mlp | last[1]
    )


def _classes(module: nn.Module) -> dict[str, object]:
    """Classes of what a module consists of, but what multiplies nothing by anything.

    Dropout does nothing in a model that serves, and activations are looked at by whoever asks for them.
    """
    passing = (nn.Dropout, *ACTIVATIONS)
    return {name: type(child) for name, child in module.named_children() if type(child) not in passing}


def _norm_names(kind: Kind) -> tuple[str, ...]:
    if kind.norms_after:
        return "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
    return "input_layernorm", "post_attention_layernorm"


def _norm(module: Foreign, kind: Kind) -> Norm:
    epsilon = module.eps if hasattr(module, "eps") else module.variance_epsilon
    return Norm(weight=module.weight, epsilon=float(epsilon), offset=kind.norm_offset)


def _is_joinable(projections: tuple[nn.Linear, ...]) -> bool:
    """Whether all have a bias, or none."""
    return len({each.bias is None for each in projections}) == 1
