"""Published figures come out: exactly where they are exact, within what their rounding allows where they are rounded.

Each test is one row of a table of check values; its number and the source of the figure stand beside it.
"""

import math
from dataclasses import replace

import pytest

import planned_models as models
from kvist.base.units import Bytes, Tokens
from kvist.geometry.groups import Dtype
from kvist.geometry.layers import AttentionLayer, KvLayer, ModelLayers, RecurrentLayer, StateTensor
from kvist.planner.deployment import Deployment
from kvist.planner.kv_dtype import KvFormat, kv_dtype
from kvist.planner.plan import plan
from kvist.planner.sharding import Parallel, rank_layers
from kvist.planner.useful import bytes_fixed, bytes_per_token, bytes_per_token_beyond_windows, useful_bytes
from kvist.planner.vllm import VllmLimits, VllmPool, block_bytes
from kvist.planner.vllm_groups import VllmGroup, padding_layers, vllm_groups

GIB = models.GIB
BF16 = KvFormat(kv=kv_dtype("bfloat16"), ssm="float32")


def says(exact: float, figure: float, digits: int = 2) -> bool:
    """Whether an exact number may be printed as this figure: rounded."""
    return f"{exact:.{digits}f}" == f"{figure:.{digits}f}"


def pool(model: ModelLayers, blocks: int, step_tokens: int = 8192) -> VllmPool:
    limits = VllmLimits(step_tokens=step_tokens)
    return VllmPool(groups=vllm_groups(model.layers, BF16, 16), blocks=blocks, limits=limits)


def blocks_in(model: ModelLayers, gib: float) -> range:
    """Blocks that vLLM makes of a size that is given in GiB with two digits."""
    size = block_bytes(vllm_groups(model.layers, BF16, 16), range(len(model.layers)))
    low, high = ((gib + off) * GIB // size for off in (-0.005, 0.005))
    return range(int(low), int(high) + 1)


@pytest.mark.parametrize(
    ("model", "dtype", "expected"),
    [
        pytest.param(
            models.LLAMA_8B, "bfloat16", 131_072, id="1: Llama-3.1-8B, kvplan and kv-cache-size documentation"
        ),
        pytest.param(models.LLAMA_70B, "bfloat16", 327_680, id="2: Llama-3-70B, Mooncake: 320 KB"),
        pytest.param(models.QWEN2_72B, "bfloat16", 327_680, id="2: Qwen2.5-72B"),
        pytest.param(models.LLAMA_405B, "bfloat16", 516_096, id="3: Llama-3.1-405B, DeepSeek insights: 516 KB"),
        pytest.param(models.DEEPSEEK_V3, "bfloat16", 70_272, id="4: DeepSeek-V3, 70 KB"),
        pytest.param(models.DEEPSEEK_V3, "fp8_ds_mla", 40_016, id="4: DeepSeek-V3 as vLLM's fp8_ds_mla"),
        pytest.param(models.QWEN3_5_27B, "fp8", 32 * 1024, id="13: Qwen3.8-27B, 16 of 64 layers, talos PR 1995"),
        pytest.param(models.SMOLLM2, "bfloat16", 23_040, id="15: SmolLM2-135M"),
        pytest.param(models.GEMMA3_270M, "bfloat16", 18_432, id="15: Gemma-3-270M, if all layers saw everything"),
    ],
)
def test_rows_of_bytes_per_token(model: ModelLayers, dtype: str, expected: int) -> None:
    assert bytes_per_token(model.layers, KvFormat(kv=kv_dtype(dtype))) == expected


def test_row_5_a100_40g() -> None:
    # vllm#12330: 11.12 GiB, 5,691 blocks, 11.12x for 8,192 tokens.
    assert 5691 in blocks_in(models.LLAMA_8B, 11.12)
    assert says(pool(models.LLAMA_8B, 5691).concurrency(8192), 11.12)


@pytest.mark.parametrize(
    ("gib", "blocks", "tokens", "times", "starts"),
    [(3.81, 1952, 20_000, 1.56, True), (2.89, 1478, 29_000, 0.82, False)],
)
def test_row_6_rtx_3090(gib: float, blocks: int, tokens: int, times: float, starts: bool) -> None:
    # vllm#10517; for the second it adds that 23,648 tokens fit and does not start.
    made = pool(models.LLAMA_8B, blocks)
    assert blocks in blocks_in(models.LLAMA_8B, gib)
    assert says(made.concurrency(tokens), times)
    assert (made.requests(tokens) >= 1) == starts
    assert starts or made.printed_tokens_before_2026() == 23_648


def test_row_7_many_blocks() -> None:
    # vllm PR 13596.
    made = pool(models.LLAMA_8B, 127_626)
    assert made.printed_tokens_before_2026() == 2_042_016
    assert says(made.concurrency(2048), 997.08)


def test_row_8_gemma_3_4b() -> None:
    # kvcached#215: "Add 1 padding layers, may waste at most 3.45 %"; 317,136 tokens, 102.78x for 3,072.
    groups = vllm_groups(models.GEMMA3_4B.layers, BF16, 16)
    sliding = sum(layer != models.GEMMA3_4B.layers[5] for layer in models.GEMMA3_4B.layers)
    assert (len(groups), max(len(group.layers) for group in groups), sliding) == (7, 5, 29)
    assert padding_layers(groups) == 1
    assert says(100 * padding_layers(groups) / sliding, 3.45)
    limits = VllmLimits(step_tokens=8192)
    assert sorted(limits.group_blocks(group, 3072) for group in groups) == [192] + 6 * [193]
    for blocks in range(138_747, 138_754):
        made = pool(models.GEMMA3_4B, blocks)
        assert made.printed_tokens_before_2026() == 317_136
        assert says(made.concurrency(3072), 102.78)
    assert pool(models.GEMMA3_4B, 138_746).printed_tokens_before_2026() < 317_136


def test_row_9_l4() -> None:
    # The page of kvplan: 4.91 GiB, 40,208 tokens, 0.31x for 131,072; vLLM says that 40,192 fit, 16.00 GiB are needed.
    assert 2513 in blocks_in(models.LLAMA_8B, 4.91)
    made = pool(models.LLAMA_8B, 2513)
    assert made.printed_tokens_before_2026() == made.printed_tokens(131_072) == 40_208
    assert says(made.concurrency(131_072), 0.31)
    assert made.longest_request(131_072) == 40_192
    request = made.limits.request_blocks(made.groups, 131_072) * block_bytes(made.groups, range(32))
    assert request == 16 * GIB


def attention_group(model: ModelLayers, form: KvFormat) -> VllmGroup:
    return next(group for group in vllm_groups(model.layers, form, 16) if group.kind == "full")


def state_group(model: ModelLayers, form: KvFormat) -> VllmGroup:
    return next(group for group in vllm_groups(model.layers, form, 16) if group.kind == "state")


@pytest.mark.parametrize(
    ("model", "ssm", "tokens", "padding"),
    [
        pytest.param(models.QWEN3_5_27B, "float32", 784, 0.13, id="10: Qwen3.6-27B, LMCache PR 5079"),
        pytest.param(models.QWEN3_5_35B, "float32", 1056, 0.76, id="11: Qwen3.5-35B-A3B, vLLM-metax PR 230"),
        pytest.param(models.QWEN3_5_35B, "bfloat16", 544, 1.49, id="11: the same with states in bf16"),
    ],
)
def test_rows_10_and_11_blocks_that_hold_a_state(model: ModelLayers, ssm: Dtype, tokens: int, padding: float) -> None:
    form = replace(BF16, ssm=ssm)
    state = state_group(model, form).blocks[0]
    assert attention_group(model, form).block_tokens == state.block_tokens == tokens
    assert says(100 * (state.bytes_taken - state.bytes_used) / state.bytes_used, padding)


def test_row_10_bytes_of_a_state() -> None:
    assert state_group(models.QWEN3_5_27B, BF16).blocks[0].bytes_used == 3_207_168


def test_row_12_a_state_on_eight_accelerators() -> None:
    # vllm-ascend#7393: 262,144 bytes of the recurrent state of Qwen3.5-35B.
    layers = rank_layers(models.QWEN3_5_35B, Parallel(tensor=8), 0)
    state = next(layer for layer in layers if isinstance(layer, RecurrentLayer))
    assert [4 * math.prod(tensor.shape) for tensor in state.tensors if tensor.name == "ssm"] == [262_144]


@pytest.mark.parametrize(
    ("model", "step_tokens", "per_token", "gib"),
    [
        pytest.param(models.GPT_OSS_120B, 1024, 36_864, 4.54, id="gpt-oss-120b"),
        pytest.param(models.GPT_OSS_20B, 8192, 24_576, 3.19, id="gpt-oss-20b"),
    ],
)
def test_row_14_gpt_oss(model: ModelLayers, step_tokens: int, per_token: int, gib: float) -> None:
    # vllm#27508 has 1.71 GiB and is refused.
    assert bytes_per_token_beyond_windows(model.layers, BF16) == per_token
    planned = plan(
        Deployment(
            model=model,
            machine=models.machine_of(80),
            form=BF16,
            context_tokens=Tokens(131_072),
            step_tokens=step_tokens,
            asynchronous=False,
            kv_bytes=Bytes(int(1.71 * GIB)),
        )
    )
    assert says(planned.kv_bytes_per_request / GIB, gib)
    assert not planned.fits


def test_row_15_gemma_3_270m() -> None:
    layers = models.GEMMA3_270M.layers
    assert bytes_per_token_beyond_windows(layers, BF16) == 3072
    assert bytes_fixed(layers, BF16) == 7.5 * 2**20
    for tokens in (512, 513, 32_768):
        assert useful_bytes(layers, BF16, tokens) == 3072 * tokens + 7.5 * 2**20
    assert useful_bytes(layers, BF16, 511) == 18_432 * 511


@pytest.mark.parametrize(
    ("model", "mib"),
    [(models.LLAMA_8B, 256), (models.LLAMA_70B, 640), (models.QWEN1_32B, 512), (models.COMMAND_R, 2560)],
    ids=["Llama-3-8B", "Llama-3-70B", "Qwen1.5-32B", "Command-R 35B"],
)
def test_row_16_2048_tokens_of_gguf_models(model: ModelLayers, mib: int) -> None:
    form = KvFormat(kv=kv_dtype("float16"))
    assert useful_bytes(model.layers, form, 2048) == 2048 * bytes_per_token(model.layers, form) == mib * 2**20


def test_row_17_qwen_3_8_flash_next() -> None:
    # vllm#54458, with two tokens drafted per step: blocks of 1,600 tokens, padding 0.88 %; 31.74x and 260,006 tokens
    # for 8,192, 4.11x and 1,077,542 for 262,144.
    attention = AttentionLayer(kv_heads=2, head_dim_k=256, head_dim_v=256)
    conv = StateTensor(name="conv", shape=(2 * 16 * 128 + 48 * 128, 3 + 2))
    state = RecurrentLayer(tensors=(conv, StateTensor(name="ssm", shape=(48, 128, 128))))
    layers: list[KvLayer] = [state, state, state, attention] * 12
    model = models.model_of(*layers)
    block = state_group(model, BF16).blocks[0]
    assert attention_group(model, BF16).block_tokens == 1600
    assert says(100 * (block.bytes_taken - block.bytes_used) / block.bytes_used, 0.88)
    full = attention_group(model, BF16)
    assert explained(full) != []
    for other in (1584, 1616):
        block = replace(full.blocks[0], block_tokens=other)
        assert explained(replace(full, blocks=(block,) * len(full.layers))) == []


def explained(full: VllmGroup) -> list[int]:
    """How many blocks of other kinds per request explain what vLLM printed for both lengths with about one pool."""
    limits = VllmLimits(step_tokens=8192, speculative_tokens=2)
    found = []
    for others in range(100):
        sizes = []
        for tokens, times, printed in ((8192, 31.74, 260_006), (262_144, 4.11, 1_077_542)):
            per_request = limits.group_blocks(full, tokens) + others
            blocks = -(-printed * per_request // tokens)
            if int(blocks / per_request * tokens) == printed and says(blocks / per_request, times):
                sizes.append(blocks)
        if len(sizes) == 2 and abs(sizes[0] / sizes[1] - 1) < 0.05:
            found.append(others)
    return found


def test_llama_3_70b_takes_320_kib_per_token_and_about_40_gb_for_128k() -> None:
    form = KvFormat(kv=kv_dtype("float16"))
    assert bytes_per_token(models.LLAMA_70B.layers, form) == 320 * 1024
    assert useful_bytes(models.LLAMA_70B.layers, form, 131_072) == 40 * GIB


def test_32_layers_of_8_heads_of_128_take_128_kib_per_token() -> None:
    layers = (AttentionLayer(kv_heads=8, head_dim_k=128, head_dim_v=128),) * 32
    assert bytes_per_token(layers, BF16) == 128 * 1024
    assert useful_bytes(layers, BF16, 8192) == GIB
    planned = plan(
        Deployment(
            model=models.model_of(*layers),
            machine=models.machine_of(80),
            form=BF16,
            context_tokens=Tokens(8192),
            concurrency=32,
        )
    )
    assert planned.kv_bytes_total == 32 * GIB


def test_180_gb_with_100_used_leave_64_at_0_8() -> None:
    model = models.model_of(models.FULL)
    deployment = Deployment(
        model=model,
        machine=replace(models.machine_of(1, link=None), bytes_total=Bytes(180 * 10**9)),
        form=BF16,
        context_tokens=Tokens(16),
        rules="kvist",
        utilisation=0.8,
        weights_bytes=Bytes(100 * 10**9),
    )
    planned = plan(deployment)
    used = planned.weights_bytes_per_rank + planned.workspace_bytes_per_rank + planned.reserve_bytes_per_rank
    assert planned.weights_bytes_per_rank == 100 * 10**9
    assert planned.kv_bytes_left_per_rank == (180 * 10**9 - used) * 8 // 10
    assert 64 * 10**9 - planned.kv_bytes_left_per_rank == pytest.approx(0.8 * planned.workspace_bytes_per_rank, abs=1)
