"""Whatever else happens around a request, it gets what it gets alone, and no block that others may read ever changes.

A schedule says who arrives when and who gives up when, over an engine of random shape: blocks and steps of any size,
a pool that holds little more than the longest request, and admission that counts on more room than there is.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from depth import examples
from kvist.base.ids import RequestId
from tiny_engine import Answer, Shape, Subject, TinyEngine, ask, compare, one_thread, subject

pytestmark = pytest.mark.slow

OUTPUT_MAX = 16
PREFIX_MAX, TAIL_MAX = 60, 16

# Full attention with grouped heads; most layers in a window; a soft cap and windows; layers without rotation.
DIFFERENT = ("llama-gqa3", "gemma3", "gemma2", "smollm3-window")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request: the step before which it arrives, what it asks, and the one before which its client is gone."""

    arrives: int
    prompt: tuple[int, ...]
    output: int
    tenant: str
    gone: int | None

    @property
    def tokens(self) -> int:
        """The most that it can become."""
        return len(self.prompt) + self.output


def text(seed: int, length: int) -> tuple[int, ...]:
    """The beginning of one of a few endless texts."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, 300, (PREFIX_MAX,), generator=generator).tolist()[:length])


def visit(arrives: int, length: int, tail: list[int], stays: int | None, **rest: int | str) -> Visit:
    """A visit, its prompt in two parts: from one of two books, and its own."""
    prompt = (*text(rest.pop("book"), length), *tail)
    return Visit(arrives=arrives, prompt=prompt, gone=None if stays is None else arrives + stays, **rest)


def visits(*, arrives: int, shared: int, tail: int, output: int) -> st.SearchStrategy[Visit]:
    """Visits that arrive up to a step, with prompts of bounded parts, and outputs with a bound of at least so much."""
    return st.builds(
        visit,
        arrives=st.integers(0, arrives),
        book=st.integers(0, 1),
        length=st.integers(0, shared),
        tail=st.lists(st.integers(3, 299), min_size=1, max_size=tail),
        output=st.integers(output, OUTPUT_MAX),
        tenant=st.sampled_from(["blue", "blue", "blue", "red"]),
        stays=st.one_of(st.none(), st.none(), st.none(), st.integers(0, 20)),
    )


# Some come and go; or a crowd comes at once, asks little, and wants to hear much.
loose = st.lists(visits(arrives=8, shared=PREFIX_MAX, tail=TAIL_MAX, output=1), min_size=2, max_size=7)
crowd = st.lists(visits(arrives=2, shared=12, tail=8, output=8), min_size=3, max_size=7)


@st.composite
def shapes(draw: st.DrawFn, tested: Subject, longest: int, *, crowded: bool) -> Shape:
    """An engine in which a sequence of `longest` tokens fits alone, and little more."""
    sequences = draw(st.integers(3 if crowded else 1, 6))
    size = draw(st.sampled_from([1, 4, 7] if crowded else [1, 4, 7, 16, 32]))
    steps = draw(st.integers(sequences, 12 if crowded else 90))
    least = next(
        blocks
        for blocks in range(1, longest + 1)
        if Shape(blocks=blocks, block_tokens=size, step_tokens=steps).holds(tested.geometry.groups, longest)
    )
    return Shape(
        blocks=least + draw(st.integers(0, 2 if crowded else least)),
        block_tokens=size,
        step_tokens=steps,
        sequences_max=sequences,
        overcommit=1000.0 if crowded else draw(st.sampled_from([1.0, 2.0])),
    )


def drawn(data: st.DataObject, tested: Subject) -> tuple[TinyEngine, list[Visit]]:
    """An engine, and a schedule of which each request fits alone."""
    crowded = data.draw(st.booleans(), label="crowded")
    schedule = data.draw(crowd if crowded else loose, label="schedule")
    longest = max(visit.tokens for visit in schedule)
    shape = data.draw(shapes(tested, longest, crowded=crowded), label="shape")
    return TinyEngine(tested, shape), schedule


def play(engine: TinyEngine, schedule: list[Visit]) -> None:
    """Runs a schedule to its end; the books are checked after every step."""
    last = max(max(visit.arrives, visit.gone or 0) for visit in schedule)
    step = 0
    while step <= last or engine.core.has_work:
        for index, visit in enumerate(schedule):
            if visit.arrives == step:
                engine.submit(f"{index}", visit.prompt, visit.output, tenant=visit.tenant)
            if visit.gone == step:
                engine.core.abort(RequestId(f"{index}"))
        if engine.core.has_work:
            engine.step()
        step += 1


@cache
def alone(name: str, prompt: tuple[int, ...]) -> Answer:
    """What a prompt gets with an engine to itself."""
    return ask(TinyEngine(subject(name)), "alone", prompt, OUTPUT_MAX)


def check(engine: TinyEngine, name: str, schedule: list[Visit]) -> None:
    """Each got what it gets alone, as far as it stayed; nobody was left without an end."""
    for index, visit in enumerate(schedule):
        found, wanted = engine.answer(f"{index}"), alone(name, visit.prompt)
        if visit.gone is None:
            assert len(found.tokens) == visit.output, visit
        count = len(found.tokens)
        expected = Answer(tokens=wanted.tokens[:count], logits=wanted.logits[:count])
        # A draw whose request is gone was made and never told.
        found = Answer(tokens=found.tokens, logits=found.logits[:count])
        compare(found, expected, f"{visit} in {engine.shape}")


@pytest.mark.parametrize("name", DIFFERENT)
@settings(max_examples=examples(10))
@given(data=st.data())
def test_nothing_around_a_request_changes_its_answer(name: str, data: st.DataObject) -> None:
    engine, schedule = drawn(data, subject(name))
    play(engine, schedule)
    check(engine, name, schedule)
    books = engine.core.statistics()
    for what, count in (
        ("preempted", books.preemptions),
        ("found in the cache", books.tokens_prompt_cached),
        ("evicted", books.evictions),
        ("aborted", books.aborts),
    ):
        event(f"{what}: {count > 0}")


@pytest.mark.parametrize("name", DIFFERENT)
@settings(max_examples=examples(6))
@given(data=st.data())
def test_a_step_changes_no_byte_of_a_block_that_has_a_key(name: str, data: st.DataObject) -> None:
    engine, schedule = drawn(data, subject(name, torch.bfloat16))

    def watch(compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        before = engine.sealed()
        logits = compute()
        after = engine.sealed()
        assert before.keys() == after.keys()
        for place, content in before.items():
            assert torch.equal(after[place], content), f"{place} changed"
        return logits

    engine.backend.watch = watch
    play(engine, schedule)
