"""Who computes what: equal beginnings once, different tenants each for themselves."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from fakes.dice import Dice
from fakes.shape import Shape, request_of
from fakes.trial import EngineTrial
from kvist.base.ids import RequestId
from kvist.base.units import Tokens
from kvist.blocks.window import Retention
from kvist.engine.messages import Admitted
from kvist.engine.request import Request

Seeds = st.integers(0, 2**64 - 1)


def roomy(dice: Dice, *windows: int | None, tokens: int = 300) -> Shape:
    """An engine that keeps so many tokens without evicting, and the windows at which equal prompts end."""
    size, sequences = dice.number(1, 5), dice.number(1, 4)
    return Shape(
        windows=windows,
        blocks=(tokens // size + 20,) * len(windows),
        block_tokens=size,
        step_tokens=dice.number(sequences, 14),
        sequences_max=sequences,
        retention=Retention(checkpoint_tokens=Tokens(1000), slack_tokens=Tokens(size)),
    )


def prompt_of(dice: Dice, most: int) -> tuple[int, ...]:
    return tuple(dice.number(0, 2) for _ in range(dice.number(1, most)))


def cached(trial: EngineTrial, name: RequestId) -> int:
    """Prompt tokens that a request found."""
    return next(event.tokens_cached for event in trial.events[name] if isinstance(event, Admitted))


@settings(max_examples=examples(40))
@given(Seeds, st.sampled_from([(None,), (3,), (None, 1), (None, 5), (None, 4, 9), (16,)]))
def test_equal_prompts_that_arrive_together_are_computed_once(seed: int, windows: tuple[int | None, ...]) -> None:
    """All but the block of the last token, which each request needs a query for."""
    dice = Dice(seed)
    trial, prompt, copies = EngineTrial(roomy(dice, *windows)), prompt_of(dice, 50), dice.number(2, 5)
    output = dice.number(1, 6)
    trial.submit(*(request_of(f"{n}", prompt, output=output, seed=n) for n in range(copies)))
    trial.drain()
    trial.check_ended()
    shared = (len(prompt) - 1) // trial.shape.block_tokens * trial.shape.block_tokens
    assert sorted(cached(trial, name) for name in trial.requests) == [0] + [shared] * (copies - 1)
    assert not trial.core.statistics().evictions
    assert trial.core.statistics().tokens_prompt_computed == copies * len(prompt) - (copies - 1) * shared


@settings(max_examples=examples(40))
@given(Seeds)
def test_no_block_that_somebody_could_have_waited_for_is_computed_twice(seed: int) -> None:
    """Prompts with common beginnings of all lengths, some together, some while others run."""
    dice = Dice(seed)
    trial, stem = EngineTrial(roomy(dice, None, tokens=700)), prompt_of(dice, 30)
    for batch in range(dice.number(1, 4)):
        trial.submit(
            *(
                request_of(f"{batch}.{n}", stem[: dice.number(1, len(stem))] + prompt_of(dice, 4), output=1)
                for n in range(dice.number(1, 4))
            )
        )
        for _ in range(dice.number(0, 4)):
            if trial.core.has_work:
                trial.step()
    trial.drain()
    trial.check_ended()
    size, times = trial.shape.block_tokens, Counter[tuple[int, ...]]()
    for (name, position), count in trial.backend.computed.items():
        prompt = trial.requests[name].prompt
        if position % size == size - 1 and position < len(prompt) - 1:
            times[prompt[: position + 1]] += count
    assert max(times.values(), default=1) == 1
    assert not trial.core.statistics().evictions


@settings(max_examples=examples(30))
@given(Seeds, st.sampled_from([(None,), (None, 5), (4,)]))
def test_a_tenant_is_served_alike_whatever_another_has_sent(seed: int, windows: tuple[int | None, ...]) -> None:
    """Hits, and so times, tell nothing about prompts of others: equal ones or not, the same tokens are computed."""

    def hits_after(others: list[tuple[int, ...]], mine: list[tuple[int, ...]]) -> list[int]:
        trial = EngineTrial(shape)
        trial.submit(*(request_of(f"green {n}", prompt, tenant="green") for n, prompt in enumerate(others)))
        trial.submit(*(request_of(f"blue {n}", prompt, tenant="blue") for n, prompt in enumerate(mine)))
        trial.drain()
        trial.check_ended()
        return [cached(trial, name) for name in trial.requests if name.startswith("blue")]

    dice = Dice(seed)
    shape = replace(roomy(dice, *windows), sequences_max=8, step_tokens=dice.number(8, 14))
    mine = [prompt_of(dice, 30) for _ in range(3)]
    unlike = [tuple((token + 1) % 3 for token in prompt) for prompt in mine]
    assert hits_after(mine, mine) == hits_after(unlike, mine)
    assert hits_after([], [mine[0], mine[0]])[1] == (len(mine[0]) - 1) // shape.block_tokens * shape.block_tokens


@settings(max_examples=examples(30))
@given(Seeds)
def test_a_conversation_that_goes_on_finds_its_beginning(seed: int) -> None:
    """Prompt and answer of each turn are there for the next, in groups with and without a window."""
    dice = Dice(seed)
    trial = EngineTrial(roomy(dice, *dice.pick([(None,), (None, 5), (3, None)])))
    said: tuple[int, ...] = ()
    for turn in range(3):
        known, said = len(said), said + prompt_of(dice, 10)
        request: Request = request_of(f"{turn}", said, output=dice.number(1, 8))
        trial.submit(request)
        trial.drain()
        # The last token of an answer was never computed: nobody asked what comes after it.
        size = trial.shape.block_tokens
        assert cached(trial, request.id) >= max(0, known - 1) // size * size
        said += tuple(trial.answer(request.id))
    trial.check_ended()
