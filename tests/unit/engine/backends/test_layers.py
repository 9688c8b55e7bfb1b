"""What is read off a model's layers, and that nothing is read off those that are not quite what they seem."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.activations import GELUActivation
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralAttention, MistralRMSNorm

from kvist.engine.backends.layers import ACTIVATIONS, KINDS, LayerParts, layer_parts, parts_of
from tiny_models import tiny_configs, tiny_model


def read(name: str) -> list[LayerParts]:
    """All layers of a tiny model."""
    model = tiny_model(tiny_configs()[name])
    assert parts_of(model) is not None
    found = [layer_parts(layer) for layer in model.get_decoder().layers]
    return [layer for layer in found if layer is not None]


@pytest.mark.parametrize("name", tiny_configs())
def test_every_served_family_is_known(name: str) -> None:
    config = tiny_configs()[name]
    layers = read(name)
    assert [layer.index for layer in layers] == list(range(config.num_hidden_layers))
    for layer in layers:
        assert (layer.heads, layer.kv_heads) == (config.num_attention_heads, config.num_key_value_heads)
        assert sum(each.out_features for each in layer.qkv) == (layer.heads + 2 * layer.kv_heads) * layer.head_dim
        assert sum(each.out_features for each in layer.gate_up) == 2 * config.intermediate_size
        assert (layer.output.out_features, layer.down.out_features) == (config.hidden_size,) * 2


def test_every_known_kind_has_a_tiny_model() -> None:
    seen = {type(tiny_model(config).get_decoder().layers[0]).__module__ for config in tiny_configs().values()}
    assert seen == set(KINDS)


def test_what_families_do_differently_is_told() -> None:
    llama, qwen2, phi3, gemma2, gemma3 = (read(name)[0] for name in ("llama", "qwen2", "phi3", "gemma2", "gemma3"))
    assert [len(each.qkv) for each in (llama, qwen2, phi3)] == [3, 3, 1]
    assert [len(each.gate_up) for each in (llama, qwen2, phi3)] == [2, 2, 1]
    assert [each.qkv[0].bias is None for each in (llama, qwen2, phi3)] == [True, False, True]
    assert [each.before_mlp.offset for each in (llama, qwen2, gemma2, gemma3)] == [0.0, 0.0, 1.0, 1.0]
    assert [each.after_mlp is None for each in (llama, phi3, gemma2, gemma3)] == [True, True, False, False]
    assert [each.query_norm is None for each in (llama, gemma2, gemma3)] == [True, True, False]
    assert [each.activation for each in (llama, gemma3)] == ["silu", "gelu_tanh"]
    assert [each.softcap for each in (llama, gemma2, gemma3)] == [None, 5.0, None]
    assert [each.scaling for each in (llama, gemma2)] == [16**-0.5, 32**-0.5]


def test_layers_that_do_not_rotate_say_so() -> None:
    assert [layer.is_rotated for layer in read("smollm3-window")] == [True, False, True, False]
    assert all(layer.is_rotated for layer in read("llama"))


def test_norms_lie_where_they_are_used() -> None:
    model = tiny_model(tiny_configs()["gemma3"])
    layer, parts = model.get_decoder().layers[2], layer_parts(model.get_decoder().layers[2])
    assert parts is not None
    assert parts.after_attention is not None
    assert parts.after_mlp is not None
    assert parts.before_attention.weight is layer.input_layernorm.weight
    assert parts.after_attention.weight is layer.post_attention_layernorm.weight
    assert parts.before_mlp.weight is layer.pre_feedforward_layernorm.weight
    assert parts.after_mlp.weight is layer.post_feedforward_layernorm.weight


class LongerLayer(LlamaDecoderLayer):
    """A family of its own, which computes as it likes."""


class ScaledLinear(nn.Linear):
    """As a quantised or adapted projection may be made."""


def longer(model: PreTrainedModel) -> None:
    model.get_decoder().layers[2] = LongerLayer(model.config, 2)


def add_to_layer(model: PreTrainedModel) -> None:
    model.get_decoder().layers[2].adapter = nn.Linear(64, 64)


def add_to_attention(model: PreTrainedModel) -> None:
    model.get_decoder().layers[2].self_attn.q_norm = LlamaRMSNorm(64)


def add_to_mlp(model: PreTrainedModel) -> None:
    model.get_decoder().layers[2].mlp.inner_norm = LlamaRMSNorm(128)


def exchange_projection(model: PreTrainedModel) -> None:
    model.get_decoder().layers[2].mlp.up_proj = ScaledLinear(64, 128, bias=False)


def exchange_attention(model: PreTrainedModel) -> None:
    model.get_decoder().layers[2].self_attn = MistralAttention(model.config, 2)


def exchange_norm(model: PreTrainedModel) -> None:
    model.get_decoder().layers[2].input_layernorm = MistralRMSNorm(64)


def exchange_last_norm(model: PreTrainedModel) -> None:
    model.get_decoder().norm = nn.LayerNorm(64)


def exchange_rotation(model: PreTrainedModel) -> None:
    model.get_decoder().rotary_emb = nn.Identity()


def exchange_activation(model: PreTrainedModel) -> None:
    model.get_decoder().layers[2].mlp.act_fn = nn.Tanh()


def exchange_head(model: PreTrainedModel) -> None:
    model.lm_head = ScaledLinear(64, 307, bias=False)


def bias_head(model: PreTrainedModel) -> None:
    model.lm_head = nn.Linear(64, 307)


def bias_one(model: PreTrainedModel) -> None:
    model.get_decoder().layers[2].self_attn.k_proj = nn.Linear(64, 64)


def look_ahead(model: PreTrainedModel) -> None:
    model.get_decoder().layers[2].self_attn.is_causal = False


def swap(model: PreTrainedModel) -> None:
    layers = model.get_decoder().layers
    layers[1], layers[2] = layers[2], layers[1]


def empty(model: PreTrainedModel) -> None:
    model.get_decoder().layers = nn.ModuleList()


CHANGES = (
    longer,
    add_to_layer,
    add_to_attention,
    add_to_mlp,
    exchange_projection,
    exchange_attention,
    exchange_norm,
    exchange_last_norm,
    exchange_rotation,
    exchange_activation,
    exchange_head,
    bias_head,
    bias_one,
    look_ahead,
    swap,
    empty,
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_was_changed_is_not_known(change: Callable[[PreTrainedModel], None]) -> None:
    model = tiny_model(tiny_configs()["llama"])
    assert parts_of(model) is not None
    change(model)
    assert parts_of(model) is None


def test_a_layer_of_another_library_is_not_known() -> None:
    assert layer_parts(nn.TransformerDecoderLayer(8, 2)) is None


def test_biases_everywhere_are_known() -> None:
    sizes = tiny_configs()["llama"].to_dict()
    model = tiny_model(LlamaConfig(**sizes | {"attention_bias": True, "mlp_bias": True}))
    parts = layer_parts(model.get_decoder().layers[0])
    assert parts is not None
    assert all(each.bias is not None for each in (*parts.qkv, parts.output, *parts.gate_up, parts.down))


def test_activations_are_what_their_names_say() -> None:
    x = torch.linspace(-4, 4, 99)
    functions = {
        "silu": lambda x: x * torch.sigmoid(x),
        "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
        "gelu": nn.functional.gelu,
    }
    assert GELUActivation in ACTIVATIONS
    for kind, name in ACTIVATIONS.items():
        torch.testing.assert_close(kind()(x), functions[name](x))
