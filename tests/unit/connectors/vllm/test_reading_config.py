"""What vLLM was told becomes our own values; what cannot be dealt with is refused at the start, by name."""

from types import SimpleNamespace

import pytest

from fakes.vllm_objects import (
    ChunkedLocalAttentionSpec,
    Configured,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    group,
    kv_cache_config,
    model_config,
    vllm_config,
)
from kvist.base.errors import ConfigError
from kvist.base.units import Tokens
from kvist.connectors.vllm.facts import GroupFacts
from kvist.connectors.vllm.reading import Foreign
from kvist.connectors.vllm.reading_config import (
    check_setup,
    engine_facts,
    engine_setup,
    groups_of,
    hash_tokens_of,
    packing_of,
)
from kvist.connectors.vllm.shapes import CANONICAL, EngineGroup

MEDIA = {
    "mm_processor_kwargs": None,
    "mm_encoder_attn_dtype": None,
    "mm_encoder_fp8_scale_path": None,
    "video_pruning_rate": None,
}
ADAPTERS = {
    "lora_dtype": "torch.bfloat16",
    "target_modules": None,
    "enable_tower_connector_lora": False,
    "enable_moe_shared_loras": False,
}


def facts_of(config: Foreign, *specs: object) -> Foreign:
    kv = kv_cache_config(*map(group, specs or (FullAttentionSpec(),)))
    return engine_facts("0.32.0+cpu", config, kv, groups_of(kv))


def test_every_kind_of_attention_is_read_with_what_a_hit_needs_of_it() -> None:
    specs = {
        "full": FullAttentionSpec(),
        "latent": MLAAttentionSpec(block_size=64),
        "sliding window": SlidingWindowSpec(sliding_window=512),
        "chunked": ChunkedLocalAttentionSpec(attention_chunk_size=8192),
    }
    found = groups_of(kv_cache_config(*(group(spec, name) for name, spec in specs.items())))
    assert [each.facts.kind for each in found] == list(specs)
    assert [each.facts.window for each in found] == [None, None, 512, 8192]
    # A query reads itself and what lies before it; only the latter must be there.
    assert [each.group.window for each in found] == [None, None, 511, 8191]
    assert found[1].group == EngineGroup(index=1, layers=("latent",), block_tokens=Tokens(64), window=None)
    assert found[0].block_bytes == 4096


def test_tokens_that_vllm_retains_beside_a_window_are_needed_too() -> None:
    (found,) = groups_of(kv_cache_config(group(SlidingWindowSpec(sliding_window=512, extra_retained_tokens=3))))
    assert found.group.window == 514


def test_a_window_of_one_token_needs_no_more_than_a_block() -> None:
    (found,) = groups_of(kv_cache_config(group(SlidingWindowSpec(sliding_window=1))))
    assert found.group.window == 1


def test_layers_with_a_specification_each_are_one_group() -> None:
    specs = UniformTypeKVCacheSpecs({"a": MLAAttentionSpec(), "b": MLAAttentionSpec()})
    (found,) = groups_of(kv_cache_config(group(specs, "a", "b")))
    assert found.facts == GroupFacts(kind="latent", window=None, block_tokens=16)


def test_groups_that_vllm_rebuilds_itself_are_left_out_and_the_others_keep_their_numbers() -> None:
    config = kv_cache_config(group(RSWASpec(), enable_kv_transfer=False), group(FullAttentionSpec()))
    assert [each.group.index for each in groups_of(config)] == [1]


@pytest.mark.parametrize(
    ("refused", "named"),
    [
        (group(MambaSpec()), "recurrent state .MambaSpec."),
        (group(type("Mine", (MambaSpec,), {})()), "recurrent state .Mine."),
        (group(RSWASpec()), "RSWASpec"),
        (group(FullAttentionSpec(prefix_cacheable=False)), "FullAttentionSpec"),
        (group(FullAttentionSpec(prefix_replay_tokens=7)), "FullAttentionSpec"),
        (group(FullAttentionSpec(), host_resident=True), "host memory"),
        (
            group(UniformTypeKVCacheSpecs({"a": FullAttentionSpec(), "b": SlidingWindowSpec()})),
            "mixes full and sliding",
        ),
        (group(object()), "object"),
        (SimpleNamespace(), "enable_kv_transfer"),
        (group(FullAttentionSpec(block_size="16")), "block_size is '16'"),  # type: ignore[arg-type]  what must be refused
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(refused: Foreign, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        groups_of(kv_cache_config(refused))


def test_a_model_without_kv_is_refused() -> None:
    with pytest.raises(ConfigError, match="no KV cache"):
        groups_of(kv_cache_config())


def test_hashes_are_as_fine_as_vllm_says_or_as_its_smallest_block() -> None:
    groups = groups_of(
        kv_cache_config(group(FullAttentionSpec(block_size=32)), group(FullAttentionSpec(block_size=64)))
    )
    assert hash_tokens_of(kv_cache_config(hash_block_size=16), groups) == 16
    assert hash_tokens_of(kv_cache_config(hash_block_size=None), groups) == 32
    with pytest.raises(ConfigError, match="every 48 tokens"):
        hash_tokens_of(kv_cache_config(hash_block_size=48), groups)


def test_the_facts_are_read() -> None:
    found = facts_of(vllm_config(), SlidingWindowSpec())
    assert found.release == "0.32"
    assert found.model == {"hidden_size": 576}
    assert (found.dtype, found.kv_dtype, found.quantization) == ("bfloat16", "auto", None)
    assert (found.position_tokens, found.hash_algorithm, found.hash_tokens) == (8192, "sha256", 16)
    assert found.groups == (GroupFacts(kind="sliding window", window=512, block_tokens=16),)
    assert not found.computed_scales


def test_scales_that_are_computed_while_serving_are_noticed() -> None:
    cache = SimpleNamespace(cache_dtype="fp8", prefix_caching_hash_algo="sha256", calculate_kv_scales=True)
    assert facts_of(vllm_config(cache_config=cache)).computed_scales


@pytest.mark.parametrize(
    ("method", "drafts"), [("eagle", True), ("draft_model", True), ("ngram", False), ("suffix", False)]
)
def test_a_model_that_drafts_counts_if_it_has_kv(method: str, *, drafts: bool) -> None:
    draft = model_config(model="/models/draft", hf_config=Configured({"hidden_size": 64}))
    config = vllm_config(speculative_config=SimpleNamespace(method=method, draft_model_config=draft))
    assert facts_of(config).draft == ({"hidden_size": 64} if drafts else None)
    assert engine_setup(config, kv_cache_config()).draft_model == ("/models/draft" if drafts else None)


def test_what_is_said_of_single_quantised_layers_counts() -> None:
    def found(ignored: list[str] | None) -> object:
        said = None if ignored is None else SimpleNamespace(ignore=ignored)
        return facts_of(
            vllm_config(model_config=model_config(quantization="fp8", quantization_config=said))
        ).quantization

    assert found(None) == "fp8"
    assert len({str(found(each)) for each in (None, [], ["q_proj"], ["k_proj"])}) == 4
    assert found(["q_proj"]) == found(["q_proj"])


def test_so_does_it_of_a_model_that_drafts() -> None:
    draft = model_config(model="/models/draft", revision="r", quantization="awq")
    config = vllm_config(speculative_config=SimpleNamespace(method="eagle", draft_model_config=draft))
    assert facts_of(config).draft_quantization == "awq"
    assert engine_setup(config, kv_cache_config()).draft_revision == "r"


@pytest.mark.parametrize("changed", [{"mm_processor_kwargs": {"do_rescale": False}}, {"video_pruning_rate": 0.5}])
def test_how_media_are_made_ready_for_all_requests_counts(changed: dict[str, object]) -> None:
    def found(**said: object) -> object:
        return facts_of(vllm_config(model_config=model_config(multimodal_config=SimpleNamespace(**MEDIA | said)))).media

    assert facts_of(vllm_config()).media == "none" != found() != found(**changed)


@pytest.mark.parametrize(
    "changed", [{"target_modules": ["q_proj"]}, {"lora_dtype": "torch.float16"}, {"enable_moe_shared_loras": True}]
)
def test_how_adapters_are_applied_is_read(changed: dict[str, object]) -> None:
    def found(**said: object) -> str:
        return engine_setup(vllm_config(lora_config=SimpleNamespace(**ADAPTERS | said)), kv_cache_config()).adapters

    assert engine_setup(vllm_config(), kv_cache_config()).adapters == "none" != found() != found(**changed)


def test_the_revision_of_code_counts_where_that_code_may_run() -> None:
    def found(*, trusted: bool) -> object:
        model = model_config(trust_remote_code=trusted, code_revision="c0ffee")
        return facts_of(vllm_config(model_config=model)).code_revision

    assert (found(trusted=True), found(trusted=False)) == ("c0ffee", None)


@pytest.mark.parametrize("part", ["model_config", "cache_config", "speculative_config"])
def test_a_release_that_lacks_something_is_refused_with_its_name(part: str) -> None:
    config = vllm_config()
    delattr(config, part)
    with pytest.raises(ConfigError, match=part):
        facts_of(config)


def test_a_configuration_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match="list"):
        facts_of(vllm_config(model_config=model_config(hf_config=Configured([1]))))


def test_the_setup_is_read() -> None:
    setup = engine_setup(vllm_config(max_concurrent_batches=2), kv_cache_config())
    assert (setup.model, setup.revision, setup.draft_model, setup.load_format) == ("/models/smol", None, None, "auto")
    assert (setup.pool_blocks, setup.batch_tokens, setup.replicas, setup.workers) == (100, 2048, 1, 1)
    assert setup.steps_overlap
    assert (setup.failure_policy, setup.role, setup.device) == ("recompute", "kv_both", "cpu")
    check_setup(setup)


@pytest.mark.parametrize("name", ["decode_context_parallel_size", "prefill_context_parallel_size"])
def test_blocks_that_are_spread_over_workers_are_refused(name: str) -> None:
    config = vllm_config()
    setattr(config.parallel_config, name, 2)
    with pytest.raises(ConfigError, match=f"{name} is 2"):
        engine_setup(config, kv_cache_config())


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("kv_load_failure_policy", "fail", '"kv_load_failure_policy": "recompute"'),
        ("kv_role", "kv_consumer", '"kv_role": "kv_both"'),
        ("kv_role", None, '"kv_role": "kv_both"'),
    ],
)
def test_settings_that_would_fail_requests_are_refused_with_the_remedy(name: str, value: object, remedy: str) -> None:
    config = vllm_config()
    setattr(config.kv_transfer_config, name, value)
    with pytest.raises(ConfigError, match=remedy):
        check_setup(engine_setup(config, kv_cache_config()))


def test_a_vllm_that_goes_on_after_a_failed_step_is_refused_since_orders_of_that_step_are_lost() -> None:
    config = vllm_config()
    config.parallel_config.enable_fault_tolerance = True
    with pytest.raises(ConfigError, match=r"enable_fault_tolerance is on.* without --enable-fault-tolerance"):
        check_setup(engine_setup(config, kv_cache_config()))


def test_how_blocks_are_packed_is_read_from_the_layers() -> None:
    groups = groups_of(kv_cache_config(group(FullAttentionSpec(), "layer.0")))
    assert packing_of("cuda", "0.32.0", vllm_config(), groups) == CANONICAL
    assert packing_of("cpu", "0.32.0", vllm_config(), groups) == "cpu amx of vllm 0.32.0"
    layers = {"layer.0": SimpleNamespace(isa="vec")}
    config = vllm_config(compilation_config=SimpleNamespace(static_forward_context=layers))
    assert packing_of("cpu", "0.32.0", config, groups) == "cpu vec of vllm 0.32.0"


@pytest.mark.parametrize("platform", ["rocm", "xpu", ""])
def test_platforms_that_nobody_has_looked_at_are_refused(platform: str) -> None:
    groups = groups_of(kv_cache_config(group(FullAttentionSpec(), "layer.0")))
    with pytest.raises(ConfigError, match=f"'{platform}'"):
        packing_of(platform, "0.32.0", vllm_config(), groups)


@pytest.mark.parametrize("layers", [{}, {"layer.0": SimpleNamespace()}])
def test_a_layer_that_does_not_say_how_it_packs_is_refused(layers: dict[str, object]) -> None:
    config = vllm_config(compilation_config=SimpleNamespace(static_forward_context=layers))
    groups = groups_of(kv_cache_config(group(FullAttentionSpec(), "layer.0")))
    with pytest.raises(ConfigError, match="isa"):
        packing_of("cpu", "0.32.0", config, groups)
