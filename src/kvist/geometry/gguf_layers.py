"""From the metadata of a GGUF file to the fields that planning reads.

Goes further than `kvist.geometry.gguf_metadata`, which it builds on: planning needs widths of feed-forward parts and
numbers of experts, but no rotary positions, so files are fine here whose positions the engine could not honour. What
the metadata leaves to the tensors (biases, tied embeddings) is told by their names.
"""

from collections.abc import Collection, Mapping

from kvist.geometry.fields import Fields, show
from kvist.geometry.gguf_metadata import GgufReader, gguf_reader, translated_sizes

_MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "smollm3": "smollm3",
    "command-r": "cohere",
    "cohere2": "cohere2",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss",
    "deepseek2": "deepseek_v2",
}
"""Our model type by GGUF architecture."""

_WIDTHS = {
    "intermediate_size": "feed_forward_length",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}

_LATENT = {
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "n_routed_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
}


def fields_from_gguf(metadata: Mapping[str, object], *, tensor_names: Collection[str]) -> Fields:
    """The metadata as the fields of a `config.json`, rotary positions left out.

    Args:
        metadata: values by key, as plain Python values.
        tensor_names: names of all tensors in the file.

    Raises:
        ModelError: the architecture is not known, or a key is missing, of the wrong type or at odds with another.
    """
    reader = gguf_reader(metadata, _MODEL_TYPES)
    model_type = _MODEL_TYPES[reader.architecture]
    if model_type == "llama" and reader.get("expert_count"):
        model_type = "mixtral"
    sizes = _latent_sizes(reader) if model_type == "deepseek_v2" else translated_sizes(reader, model_type)
    told = _WIDTHS | (_LATENT if model_type == "deepseek_v2" else {})
    values = dict(sizes.values) | {ours: reader.get(theirs) for ours, theirs in told.items() if reader.has(theirs)}
    values |= _from_tensors(tensor_names)
    if model_type == "gpt_oss" and "moe_intermediate_size" in values:
        values["intermediate_size"] = values["moe_intermediate_size"]
    if model_type == "deepseek_v2":
        values.setdefault("q_lora_rank", None)
        values.setdefault("n_shared_experts", 0)
    names = dict(sizes.names) | {ours: reader.key(theirs) for ours, theirs in told.items()}
    return Fields(values=values, source=sizes.source, names=names)


def _from_tensors(tensor_names: Collection[str]) -> dict[str, object]:
    biased = "blk.0.attn_q.bias" in tensor_names
    return {"tie_word_embeddings": "output.weight" not in tensor_names, "attention_bias": biased, "qkv_bias": biased}


def _latent_sizes(reader: GgufReader) -> Fields:
    """Sizes of a model with latent attention, whose heads newer files tell as they are before compression too."""
    long, short = reader.get("attention.key_length_mla"), reader.get("attention.key_length")
    suffix = "attention.key_length" if long is None else "attention.key_length_mla"
    of_values = "attention.value_length_mla" if reader.has("attention.value_length_mla") else "attention.value_length"
    rotated, whole = reader.get("rope.dimension_count"), short if long is None else long
    same = {reader.key("attention.key_length"): 1, reader.key("attention.value_length"): 1}
    heads = {reader.key("attention.head_count_kv"): reader.get("attention.head_count")}
    plain = GgufReader(values=dict(reader.values) | same | heads, architecture=reader.architecture)
    sizes = translated_sizes(plain, "deepseek_v2")
    values = dict(sizes.values) | {"v_head_dim": reader.get(of_values)}
    if isinstance(whole, int) and isinstance(rotated, int):
        if whole <= rotated:
            raise reader.fail(suffix, f"more than {reader.key('rope.dimension_count')}, which is {show(rotated)}")
        values["qk_nope_head_dim"] = whole - rotated
    names = {"v_head_dim": reader.key(of_values), "qk_nope_head_dim": reader.key(suffix)}
    return Fields(values=values, source=sizes.source, names=dict(sizes.names) | names)
