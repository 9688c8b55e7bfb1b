"""Any file gives layers or one `ModelError`; what it gives adds up."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.base.errors import ModelError
from kvist.geometry.layers import AttentionLayer, LatentLayer, ModelLayers, RecurrentLayer, SharedLayer, storing
from kvist.geometry.published import WRAPPINGS, model_layers, model_layers_from_gguf
from tiny_families import VARIANTS, own_fields

numbers = st.integers(-2, 9) | st.integers() | st.floats() | st.sampled_from([2**31, 10**400, 10**5000])
words = st.sampled_from(["full_attention", "conv", "mamba", "M-M*E-", "auto", "mxfp4", "compressed-tensors", "llama"])
scalars = st.none() | st.booleans() | numbers | st.text(max_size=5) | words
lists = st.lists(scalars, max_size=6)
keys = ["quant_method", "bits", "group_size", "config_groups", "weights", "num_bits", "ignore", "weight_block_size"]
anything = scalars | lists | st.dictionaries(st.sampled_from(keys), scalars | lists, max_size=4)

FILES = {name: dict(own_fields(name)) for name in VARIANTS}
OTHER_KEYS = (
    *("layer_types", "quantization_config", "tie_word_embeddings", "dtype", "no_rope_layers", "moe_layers"),
    *("mlp_only_layers", "hybrid_override_pattern", "full_attn_idxs", "attn_layer_indices", "text_config"),
    *("mamba_dt_rank", "use_sliding_window", "sliding_window", "moe_latent_size", "attention_head_dim"),
)


def read(attempt: Callable[[], ModelLayers]) -> ModelLayers | ModelError:
    """What reading gives, or the one error it may raise."""
    try:
        return attempt()
    except ModelError as error:
        return error


def check(attempt: Callable[[], ModelLayers], source: str) -> None:
    """Checks the one error there may be for its words, or a model for what must hold of any."""
    model = read(attempt)
    if isinstance(model, ModelError):
        assert str(model).startswith(source)
        assert len(str(model)) < 800
        return
    assert 0 < model.parameters.active <= model.parameters.total
    assert 0 < model.parameters.embedding <= model.parameters.total
    assert model.weight_bits is None or 0 < model.weight_bits <= 48
    for index, layer in enumerate(model.layers):
        check_layer(model, index)
        assert (index in storing(model.layers)) == isinstance(layer, AttentionLayer | LatentLayer | RecurrentLayer)


def check_layer(model: ModelLayers, index: int) -> None:
    """Checks one layer for what must hold of any."""
    match model.layers[index]:
        case AttentionLayer() as layer:
            assert min(layer.kv_heads, layer.head_dim_k, layer.head_dim_v) > 0
            assert model.query_heads % layer.kv_heads == 0
            assert all(reach is None or 0 < reach < model.positions_max for reach in (layer.window, layer.chunk))
            assert layer.window is None or layer.chunk is None
        case LatentLayer() as layer:
            assert min(layer.latent, layer.rope) > 0
        case RecurrentLayer() as layer:
            assert layer.tensors
            assert all(size > 0 for tensor in layer.tensors for size in tensor.shape)
        case SharedLayer() as layer:
            assert 0 <= layer.source < index
            assert isinstance(model.layers[layer.source], AttentionLayer)


@settings(deadline=None)
@given(name=st.sampled_from(sorted(FILES)), data=st.data())
def test_a_file_with_anything_in_it_gives_layers_or_one_error(name: str, data: st.DataObject) -> None:
    own = sorted({*FILES[name], *OTHER_KEYS})
    changes = data.draw(st.dictionaries(st.sampled_from(own), anything, max_size=3))
    gone = data.draw(st.sets(st.sampled_from(own), max_size=1))
    file = {key: value for key, value in (FILES[name] | changes).items() if key not in gone}
    check(lambda: model_layers(file), "config.json: ")
    outer = {"model_type": data.draw(st.sampled_from(sorted(WRAPPINGS))), "text_config": file}
    check(lambda: model_layers(outer | changes | {"model_type": outer["model_type"]}), "config.json: ")


GGUF = {
    "block_count": 6,
    "context_length": 512,
    "embedding_length": 48,
    "feed_forward_length": 80,
    "vocab_size": 300,
    "attention.head_count": 4,
    "attention.key_length": 16,
    "attention.sliding_window": 0,
    "attention.kv_lora_rank": 24,
    "rope.dimension_count": 8,
    "expert_count": 6,
    "expert_used_count": 2,
    "leading_dense_block_count": 1,
}


@settings(deadline=None)
@given(
    architecture=st.sampled_from(["llama", "qwen3moe", "gemma3", "gpt-oss", "deepseek2", "phi3"]),
    changes=st.dictionaries(st.sampled_from(sorted(GGUF)), anything, max_size=3),
    names=st.sets(st.sampled_from(["output.weight", "blk.0.attn_q.bias", "rope_freqs.weight"])),
)
def test_metadata_with_anything_in_it_gives_layers_or_one_error(
    architecture: str, changes: dict[str, object], names: set[str]
) -> None:
    metadata: dict[str, object] = {f"{architecture}.{suffix}": value for suffix, value in (GGUF | changes).items()}
    metadata["general.architecture"] = architecture
    check(lambda: model_layers_from_gguf(metadata, tensor_names=names), "GGUF metadata: ")
