"""Fused models compute what transformers' own compute, whatever the number of rows, and hold no weight twice."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from transformers import LlamaConfig, PreTrainedModel

from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.engine.backends import attention
from kvist.engine.backends.cpu.layer import FusedHead, FusedLayer, FusedNorm, fuse
from kvist.engine.backends.cpu.products import ROWS_FEW
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.loading import weights_bytes
from kvist.engine.backends.torch_backend import TorchBackend, by_kernels, by_torch
from kvist.engine.batch import BlockRun, Chunk, DrawSpec, batch_of
from kvist.engine.request import Sampling
from kvist.geometry.config import geometry_from_config
from kvist.geometry.groups import ModelGeometry
from tiny_engine import one_thread
from tiny_models import tiny_configs, tiny_model

SIZE = 16
BLOCKS = (9, 3, 7, 8, 20, 1)
TOKENS = 80
ENDS = (40, 41, 41 + ROWS_FEW, TOKENS - 1, TOKENS)
"""Where steps end: many rows, one, the most that are few, some, one."""

GREEDY = DrawSpec(sampling=Sampling(temperature=0), uniform=0.0)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    attention.register()
    with one_thread():
        yield


def served(name: str, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, ModelGeometry]:
    """A tiny model with our attention and transformers' layers."""
    model = tiny_model(tiny_configs()[name], dtype=dtype)
    model.set_attn_implementation(attention.IMPLEMENTATION)
    return model, geometry_from_config(model.config.to_dict())


def fused(name: str, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, ModelGeometry]:
    model, geometry = served(name, dtype)
    assert fuse(model, windows(geometry))
    return model, geometry


def windows(geometry: ModelGeometry) -> dict[int, int | None]:
    return {layer: group.window for group in geometry.groups for layer in group.layers}


def text(seed: int = 0) -> list[int]:
    return torch.randint(3, 300, (TOKENS,), generator=torch.Generator().manual_seed(seed)).tolist()


def chunk(geometry: ModelGeometry, tokens: list[int], begin: int, end: int, blocks: tuple[int, ...]) -> Chunk:
    run = BlockRun(first=0, blocks=tuple(map(BlockId, blocks[: -(-end // SIZE)])))
    return Chunk(
        request_id=RequestId(f"{blocks}"),
        tokens=tuple(map(TokenId, tokens[begin:end])),
        start=begin,
        runs=(run,) * len(geometry.groups),
        draw=GREEDY,
    )


def backend_of(model: PreTrainedModel, geometry: ModelGeometry, dtype: torch.dtype, by=by_kernels) -> TorchBackend:
    blocks = [40] * len(geometry.groups)
    store = KvStore(geometry.groups, blocks, block_tokens=SIZE, dtype=dtype, device=torch.device("cpu"))
    return TorchBackend(model, store, by(store))


def logits_of(backend: TorchBackend, geometry: ModelGeometry, tokens: list[int]) -> torch.Tensor:
    """The logits at the end of each step, [steps, vocab]."""
    return stepwise(backend, geometry, tokens, ENDS).float()


def stepwise(backend: TorchBackend, geometry: ModelGeometry, tokens: list[int], ends: tuple[int, ...]) -> torch.Tensor:
    steps = zip((0, *ends), ends, strict=False)
    batches = [batch_of([chunk(geometry, tokens, *step, BLOCKS)], block_tokens=SIZE) for step in steps]
    return torch.cat([backend.logits(batch) for batch in batches])


def expected(name: str, tokens: list[int]) -> torch.Tensor:
    """The same, by transformers alone in float32."""
    plain = tiny_model(tiny_configs()[name])
    plain.set_attn_implementation("eager")
    with torch.inference_mode():
        # One by one: rotations that depend on the length are those of the longest text of a call.
        return torch.stack([plain(torch.tensor([tokens[:end]]), use_cache=False).logits[0, -1] for end in ENDS])


@pytest.mark.parametrize("name", tiny_configs())
def test_every_family_computes_what_transformers_does(name: str) -> None:
    model, geometry = fused(name)
    found = logits_of(backend_of(model, geometry, torch.float32), geometry, text())
    torch.testing.assert_close(found, expected(name, text()), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["llama-gqa3", "qwen3", "gemma2", "phi3-partial"])
def test_half_precision_is_as_close_to_full_as_transformers_layers_are(name: str) -> None:
    ours, theirs = 0.0, 0.0
    for seed in range(4):
        wanted = expected(name, text(seed))
        for model, geometry, by in (
            (*fused(name, torch.bfloat16), by_kernels),
            (*served(name, torch.bfloat16), by_torch),
        ):
            found = logits_of(backend_of(model, geometry, torch.bfloat16, by), geometry, text(seed))
            off = float((found - wanted).abs().mean())
            ours, theirs = (ours + off, theirs) if by is by_kernels else (ours, theirs + off)
    assert 0 < ours < 1.1 * theirs


def test_layers_of_transformers_attend_by_kernels_too() -> None:
    model, geometry = served("gemma3")
    found = logits_of(backend_of(model, geometry, torch.float32), geometry, text())
    torch.testing.assert_close(found, expected("gemma3", text()), atol=1e-4, rtol=0)


def test_biases_of_every_projection_are_added() -> None:
    sizes = tiny_configs()["llama"].to_dict() | {"attention_bias": True, "mlp_bias": True}
    plain, model = (tiny_model(LlamaConfig(**sizes)) for _ in range(2))
    for one, other in zip(plain.named_parameters(), model.named_parameters(), strict=True):
        if one[0].endswith("bias"):
            with torch.no_grad():
                one[1].uniform_(-1, 1, generator=torch.Generator().manual_seed(3))
                other[1].copy_(one[1])
    plain.set_attn_implementation("eager")
    model.set_attn_implementation(attention.IMPLEMENTATION)
    geometry = geometry_from_config(model.config.to_dict())
    assert fuse(model, windows(geometry))
    found = logits_of(backend_of(model, geometry, torch.float32), geometry, text())
    with torch.inference_mode():
        wanted = plain(torch.tensor([text()]), use_cache=False).logits[0, [end - 1 for end in ENDS]]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_several_sequences_in_a_step_get_what_each_gets_alone(name: str) -> None:
    model, geometry = fused(name)
    backend, texts = backend_of(model, geometry, torch.float32), [text(seed) for seed in range(3)]
    begins, ends = (0, 37, 38), (37, 38, 40)
    for begin, end in zip(begins, ends, strict=True):
        chunks = [chunk(geometry, each, begin, end, (3 * i, 3 * i + 1, 3 * i + 2)) for i, each in enumerate(texts)]
        found = backend.logits(batch_of(chunks, block_tokens=SIZE))
    plain = tiny_model(tiny_configs()[name])
    with torch.inference_mode():
        wanted = plain(torch.tensor([each[:40] for each in texts]), use_cache=False).logits[:, -1]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


def test_other_numbers_of_rows_between_change_nothing() -> None:
    """Programs for several numbers of rows lie in the same memory."""
    model, geometry = fused("llama")
    backend = backend_of(model, geometry, torch.float32)
    first = logits_of(backend, geometry, text())
    other = tuple(block + 10 for block in BLOCKS)
    for rows in (3, 1, ROWS_FEW, 2):
        backend.logits(batch_of([chunk(geometry, text(1), 0, rows, other)], block_tokens=SIZE))
        assert torch.equal(logits_of(backend, geometry, text()), first)


def test_two_pools_take_turns_with_one_model() -> None:
    """What is put together for one of them must not be run for the other."""
    model, geometry = fused("llama")
    texts, ends = (text(0), text(1)), (40, 41, 42, 43)
    alone = [stepwise(backend_of(model, geometry, torch.float32), geometry, each, ends) for each in texts]
    backends, found = [backend_of(model, geometry, torch.float32) for _ in texts], ([], [])
    for begin, end in zip((0, *ends), ends, strict=False):
        for index, backend in enumerate(backends):
            step = batch_of([chunk(geometry, texts[index], begin, end, BLOCKS)], block_tokens=SIZE)
            found[index].append(backend.logits(step))
    assert all(torch.equal(torch.cat(each), wanted) for each, wanted in zip(found, alone, strict=True))


def test_more_threads_than_there_were_have_memory_of_their_own(torch_threads: Callable[[int], None]) -> None:
    model, geometry = fused("llama")
    backend = backend_of(model, geometry, torch.float32)
    wanted = logits_of(backend, geometry, text())
    for threads in (2, 1):
        torch_threads(threads)
        torch.testing.assert_close(logits_of(backend, geometry, text()), wanted, atol=1e-6, rtol=0)


def test_a_model_keeps_no_pool_that_nobody_has() -> None:
    model, geometry = fused("llama")
    backend = backend_of(model, geometry, torch.float32)
    logits_of(backend, geometry, text())
    keys = weakref.ref(backend.store.keys[0])
    del backend
    gc.collect()
    assert keys() is None


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3", "qwen2"])
def test_no_weight_is_lost_and_none_is_held_twice(name: str) -> None:
    model, geometry = served(name)
    layers = model.get_decoder().layers
    there = [weakref.ref(layers[0].mlp.down_proj.weight), weakref.ref(layers[-1].self_attn.o_proj.weight)]
    before, numbers = weights_bytes(model), sum(each.double().sum().item() for each in model.parameters())
    assert fuse(model, windows(geometry))
    gc.collect()
    assert [each() for each in there] == [None, None]
    assert weights_bytes(model) == before
    assert sum(each.double().sum().item() for each in model.parameters()) == pytest.approx(numbers)


def test_the_head_is_still_the_embedding_where_it_was() -> None:
    config = tiny_configs()["llama"]
    config.tie_word_embeddings = True
    model = tiny_model(config)
    assert fuse(model, dict.fromkeys(range(4)))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_a_model_that_is_not_known_stays_as_it_is() -> None:
    model = tiny_model(tiny_configs()["llama"])
    model.get_decoder().layers[3].extra = torch.nn.Linear(1, 1)
    before = [type(module) for module in model.modules()]
    assert not fuse(model, dict.fromkeys(range(4)))
    assert [type(module) for module in model.modules()] == before
    assert not {FusedLayer, FusedNorm, FusedHead} & set(before)
