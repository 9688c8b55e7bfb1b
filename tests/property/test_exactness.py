"""However a request is run, it gets what transformers' own `generate` gives, for every supported architecture.

The tiny models have windows of 16 to 32 tokens, so that prompts are shorter and longer than these, and positions
enough for several chunks. Weights are float32: what is left of differences is the order of additions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pytest
import torch

from tiny_engine import Answer, Shape, Subject, TinyEngine, ask, compare, generate, one_thread, subject
from tiny_models import tiny_configs

pytestmark = pytest.mark.slow

OUTPUT = 8
BLOCK = Shape().block_tokens

every_model = pytest.mark.parametrize("name", tiny_configs())


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Eight prompts, no two of which begin alike, and what transformers answers to each."""

    subject: Subject
    prompts: list[list[int]]
    expected: list[Answer]

    def check(self, answers: Sequence[Answer], how: str) -> None:
        """Compares answers to all prompts; ties are rare enough that nearly all tokens are."""
        compared = sum(
            compare(found, expected, f"{how}, {len(prompt)} tokens")
            for found, expected, prompt in zip(answers, self.expected, self.prompts, strict=True)
        )
        assert compared >= 0.9 * OUTPUT * len(self.prompts), f"only {compared} tokens could be compared"


def texts(lengths: Sequence[int], *, seed: int = 1) -> list[list[int]]:
    """Random prompts; token ids 0 to 2 mean something to `generate`."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 300, (length,), generator=generator).tolist() for length in lengths]


@cache
def case(name: str) -> Case:
    """Prompts around the model's shortest window, around a block's end, and as long as its positions allow."""
    tested = subject(name)
    window = min((group.window for group in tested.geometry.groups if group.window), default=24)
    longest = min(330, tested.geometry.positions_max - OUTPUT)
    prompts = texts([1, window - 1, window, window + 1, 2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK - 1, longest])
    return Case(subject=tested, prompts=prompts, expected=[generate(tested, [prompt], OUTPUT)[0] for prompt in prompts])


@every_model
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "torch"])
def test_cold_alone_and_warm_again(name: str, kernels: bool) -> None:
    tested = case(name)
    cold, warm = [], []
    for prompt in tested.prompts:
        engine = TinyEngine(subject(name, kernels=kernels))
        cold.append(ask(engine, "cold", prompt, OUTPUT))
        warm.append(ask(engine, "warm", prompt, OUTPUT))
    tested.check(cold, "cold")
    tested.check(warm, "warm")
    assert [answer.tokens_cached for answer in cold] == [0] * len(cold)
    assert [answer.tokens_cached for answer in warm] == [(len(p) - 1) // BLOCK * BLOCK for p in tested.prompts]


@every_model
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "torch"])
def test_in_a_batch_of_eight(name: str, kernels: bool) -> None:
    tested = case(name)
    engine = TinyEngine(subject(name, kernels=kernels))
    for how in ("cold together", "warm together"):
        for index, prompt in enumerate(tested.prompts):
            engine.submit(f"{how} {index}", prompt, OUTPUT)
        engine.run()
        tested.check([engine.answer(f"{how} {index}") for index in range(len(tested.prompts))], how)
    assert max(map(len, engine.backend.batches)) == 8
    assert engine.answer("warm together 7").tokens_cached > 0


@every_model
@pytest.mark.parametrize(
    "shape",
    [
        Shape(step_tokens=64),
        Shape(step_tokens=23, sequences_max=3),
        pytest.param(Shape(step_tokens=37, block_tokens=5, blocks=300)),
        pytest.param(Shape(step_tokens=1, sequences_max=1, block_tokens=1, blocks=350)),
    ],
    ids=lambda shape: f"{shape.step_tokens} tokens a step, blocks of {shape.block_tokens}",
)
def test_in_chunks_among_decodes(name: str, shape: Shape) -> None:
    tested = case(name)
    engine = TinyEngine(tested.subject, shape)
    # With steps of one token each prompt would take as many; the longest are for the larger ones.
    few = tested.prompts if shape.step_tokens > 1 else tested.prompts[:4]
    for index, prompt in enumerate(few):
        engine.submit(f"{index}", prompt, OUTPUT)
    engine.run()
    answers = [engine.answer(f"{index}") for index in range(len(few))]
    Case(subject=tested.subject, prompts=few, expected=tested.expected[: len(few)]).check(answers, "in chunks")
    sizes = {sum(len(chunk.tokens) for chunk in batch) for batch in engine.backend.batches}
    assert max(sizes) == shape.step_tokens
    mixed = [batch for batch in engine.backend.batches if {1} < {len(chunk.tokens) for chunk in batch}]
    assert mixed or shape.sequences_max == 1, "no chunk ran beside a decode"


@every_model
def test_preempted_and_resumed(name: str) -> None:
    tested = subject(name)
    prompts = texts([6] * 5, seed=2)
    expected = generate(tested, prompts, 30)
    # Admission believes that outputs will be short; they are long, and the pool holds little more than one.
    engine = TinyEngine(tested, Shape(blocks=12, block_tokens=4, step_tokens=8, overcommit=1000))
    for index, prompt in enumerate(prompts):
        engine.submit(f"{index}", prompt, 30)
    engine.run()
    answers = [engine.answer(f"{index}") for index in range(len(prompts))]
    assert sum(answer.preemptions for answer in answers) >= 2
    for index, answer in enumerate(answers):
        assert compare(answer, expected[index], f"preempted {answer.preemptions} times") >= 15


@every_model
def test_a_shared_prefix_is_computed_once_and_used_by_all(name: str) -> None:
    tested = case(name)
    common = tested.prompts[-1][: 4 * BLOCK]
    prompts = [[*common, *tail] for tail in texts([1, 2, 3], seed=3)]
    expected = [generate(tested.subject, [prompt], OUTPUT)[0] for prompt in prompts]
    engine = TinyEngine(tested.subject)
    for index, prompt in enumerate(prompts):
        engine.submit(f"{index}", prompt, OUTPUT)
    engine.run()
    answers = [engine.answer(f"{index}") for index in range(len(prompts))]
    assert [answer.tokens_cached for answer in answers] == [0, len(common), len(common)]
    for answer, wanted in zip(answers, expected, strict=True):
        compare(answer, wanted, "after a shared prefix")


@every_model
def test_the_same_words_after_another_beginning_are_other_words(name: str) -> None:
    tested = case(name)
    engine = TinyEngine(tested.subject)
    first, second = texts([BLOCK, BLOCK], seed=5)
    common = texts([3 * BLOCK + 1], seed=6)[0]  # longer than each window, so that only what lies before it differs
    for index, beginning in enumerate((first, second)):
        prompt = [*beginning, *common]
        answer = ask(engine, f"{index}", prompt, OUTPUT)
        assert answer.tokens_cached == 0
        compare(answer, generate(tested.subject, [prompt], OUTPUT)[0], f"beginning {index}")


@every_model
def test_a_conversation_goes_on_from_its_own_answer(name: str) -> None:
    tested = case(name)
    engine = TinyEngine(tested.subject)
    text, known = tested.prompts[4], 0
    for turn in range(3):
        answer = ask(engine, f"{turn}", text, OUTPUT)
        compare(answer, generate(tested.subject, [text], OUTPUT)[0], f"turn {turn}")
        assert answer.tokens_cached == known // BLOCK * BLOCK
        known = len(text) + OUTPUT - 1  # the last token was drawn and never computed
        text = [*text, *answer.tokens, 7, 8, 9]


@every_model
def test_in_bf16_one_warm_run_equals_another_bit_for_bit(name: str) -> None:
    engine = TinyEngine(subject(name, torch.bfloat16))
    for prompt in texts([2 * BLOCK + 1, 60], seed=4):
        ask(engine, f"cold {len(prompt)}", prompt, OUTPUT)
        first, second = (ask(engine, f"warm {len(prompt)} {run}", prompt, OUTPUT) for run in range(2))
        assert first.tokens_cached == second.tokens_cached == (len(prompt) - 1) // BLOCK * BLOCK
        assert first.tokens == second.tokens
        assert torch.equal(torch.stack(first.logits), torch.stack(second.logits))
