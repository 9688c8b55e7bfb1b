"""In bfloat16 a warm run equals another warm run of the same cached length bit for bit, and reused blocks never change.

Warm is not compared with cold here: in bfloat16 the shape of a chunk is part of the result. What must not be part of
it is where in the pool the blocks lie, so the runs are made to get other blocks, in another order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from kvist.base.ids import BlockId
from kvist.blocks.lifecycle import State
from kvist.engine.backends.tokenizer import load_tokenizer
from kvist.engine.request import Request
from real.engine import Answer, RealEngine, Weights, blocks_for, greedy, load_weights
from real.prompts import prompts

pytestmark = [pytest.mark.model, pytest.mark.slow]

NAMES = ("one block and one", "spaces", "short of a window", "over a window", "inventory")
OUTPUT_TOKENS = 40
LOGPROBS = 8
BOUNDS = {"tokens_max": 4096, "step_tokens": 512}
Block = tuple[int, BlockId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """One engine after a cold run and two warm ones of each prompt.

    Attributes:
        answers: by prompt, of the cold run and of the warm ones.
        cold_blocks: the content of every block that was cached when all cold runs were over.
        warm_layouts: by prompt, for each warm run the blocks that it held when its first token was drawn.
    """

    engine: RealEngine
    prompts: dict[str, tuple[int, ...]]
    answers: dict[str, list[Answer]]
    cold_blocks: dict[Block, torch.Tensor]
    warm_layouts: dict[str, list[list[list[BlockId]]]]


def alone(engine: RealEngine, request: Request, layouts: list[list[list[BlockId]]]) -> Answer:
    """Carries out one request by itself, and notes the blocks that it holds after its first step."""
    answer = engine.submit(request)
    engine.core.step()
    layouts.append(engine.core._running[request.id].table.held())
    engine.run()
    return answer


def sealed(engine: RealEngine) -> dict[Block, torch.Tensor]:
    """The content of all cached blocks."""
    return {
        (group, block): engine.store.read_block(group, block)
        for group, pool in enumerate(engine.cache.pools)
        for block in map(BlockId, range(len(pool)))
        if pool.state(block) is State.CACHED
    }


@pytest.fixture(scope="module", params=["smollm2", "gemma3-270m"])
def weights(request: pytest.FixtureRequest) -> Weights:
    return load_weights(request.param, "bfloat16")


@pytest.fixture(scope="module")
def runs(weights: Weights) -> Runs:
    """Cold, warm, then two others that leave holes between the free blocks, then warm again."""
    engine = RealEngine(weights, blocks_for(weights, 256 * 2**20, **BOUNDS), **BOUNDS)
    every = prompts(load_tokenizer(weights.files.directory).encode)
    texts = {name: every[name] for name in NAMES}
    answers: dict[str, list[Answer]] = {name: [] for name in texts}
    layouts: dict[str, list[list[list[BlockId]]]] = {name: [] for name in texts}

    def pass_over(run: str) -> None:
        for name, prompt in texts.items():
            asked = greedy(f"{run} {name}", prompt, OUTPUT_TOKENS, logprobs=LOGPROBS)
            answers[name].append(alone(engine, asked, layouts[name]))

    pass_over("cold")
    cold_blocks = sealed(engine)
    pass_over("warm")
    scatter(engine, texts["inventory"])
    pass_over("warm again")
    return Runs(
        engine=engine,
        prompts=texts,
        answers=answers,
        cold_blocks=cold_blocks,
        warm_layouts={name: found[1:] for name, found in layouts.items()},
    )


def scatter(engine: RealEngine, prompt: Sequence[int]) -> None:
    """Two requests that take blocks in turns and give back those that hold no full block, in the order they end."""
    engine.answer([greedy("long", prompt[40:240], 30), greedy("short", prompt[300:420], 11)])


def test_warm_runs_reused_all_full_blocks_of_the_prompt(runs: Runs) -> None:
    for name, prompt in runs.prompts.items():
        cached = [answer.tokens_cached for answer in runs.answers[name][1:]]
        assert cached == [(len(prompt) - 1) // 16 * 16] * 2, name


def test_warm_runs_had_other_blocks_where_they_wrote(runs: Runs) -> None:
    for name, (first, second) in runs.warm_layouts.items():
        written = [[group[-1] for group in layout] for layout in (first, second)]
        assert written[0] != written[1], name


def test_warm_equals_warm_bit_for_bit(runs: Runs) -> None:
    for name, (_, first, second) in runs.answers.items():
        assert first.tokens == second.tokens, name
        for index, (one, other) in enumerate(zip(first.draws, second.draws, strict=True)):
            assert len(one.top) == LOGPROBS
            assert (one.logprob, one.top) == (other.logprob, other.top), f"{name}: token {index}"


def test_bytes_of_reused_blocks_never_change(runs: Runs) -> None:
    assert runs.engine.core.statistics().evictions == 0
    now = sealed(runs.engine)
    assert runs.cold_blocks.keys() <= now.keys()
    for (group, block), before in runs.cold_blocks.items():
        assert before.view(torch.uint8).equal(now[group, block].view(torch.uint8)), f"block {block} of group {group}"


def test_the_blocks_that_are_compared_hold_something(runs: Runs) -> None:
    tokens = sum(len(prompt) // 16 * 16 for prompt in runs.prompts.values())
    first_group = [content for (group, _), content in runs.cold_blocks.items() if group == 0]
    assert len(first_group) >= tokens // 16
    assert all(bool(content.abs().sum(dim=(0, 1, 3)).min() > 0) for content in runs.cold_blocks.values())


def test_blocks_in_a_row_and_scattered_blocks_give_the_same_bits(weights: Weights) -> None:
    prefix, tail, spare = 25, 5, 3
    prompt = prompts(load_tokenizer(weights.files.directory).encode)["inventory"][: 16 * prefix + tail]
    pools = [prefix + spare] * len(weights.geometry.groups)
    engine = RealEngine(weights, pools, **BOUNDS)
    layouts: list[list[list[BlockId]]] = []
    # Each run takes the tail's block from one end of the free ones and gives it back to the other.
    _, *warm = (
        alone(engine, greedy(f"run {run}", prompt, 16 - tail, logprobs=LOGPROBS), layouts) for run in range(1 + spare)
    )
    rows = [all(group == list(range(group[0], group[-1] + 1)) for group in layout) for layout in layouts[1:]]
    assert sorted(rows) == [False, False, True]
    assert all(answer.tokens_cached == 16 * prefix for answer in warm)
    for answer in warm[1:]:
        assert [(draw.token, draw.logprob, draw.top) for draw in answer.draws] == [
            (draw.token, draw.logprob, draw.top) for draw in warm[0].draws
        ]
