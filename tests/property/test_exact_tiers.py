"""KV that comes back from the tiers is what was computed: the same bytes, and so the same answers.

Every supported architecture, in float32, over the real fabric: a first engine computes and stores, a second one with
nothing in its own memory loads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from depth import examples
from fakes.fabric import Rig
from kvist.base.ids import RequestId
from kvist.blocks.window import first_block_of_hit
from kvist.cost.choice import choose_longest
from kvist.engine.below import Below
from kvist.engine.form import form_of
from kvist.engine.messages import Admitted
from kvist.fabric.settings import Policies
from tiny_engine import Shape, Subject, TinyEngine, ask, compare, one_thread, subject
from tiny_models import tiny_configs

pytestmark = pytest.mark.slow

OUTPUT = 6
SIZE = Shape().block_tokens
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

every_model = pytest.mark.parametrize("name", tiny_configs())


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Tiers with room for all that a test computes, and engines that stand on them."""

    subject: Subject
    rig: Rig

    def engine(self, **shape: int) -> TinyEngine:
        """An engine whose own memory is empty."""
        rig = self.rig
        below = Below(tiers=rig.fabric, view=rig.regions.view, time_s=rig.clock.now_s)
        return TinyEngine(self.subject, Shape(**shape), below, rig.movers.do_all)


def ground(name: str, *, dtype: torch.dtype = torch.float32, size: int = SIZE) -> Ground:
    """Tiers for the records of one model."""
    tested = subject(name, dtype)
    groups = tested.geometry.groups
    rig = Rig(
        payloads=[form_of(group, DTYPES[dtype], size).payload_bytes for group in groups],
        windows=[group.window for group in groups],
        names=("dram", "pool"),
        tier_records=400,
        staging_records=64,
        settings={"block_tokens": size, "policies": Policies(load_choice=choose_longest)},
    )
    return Ground(subject=tested, rig=rig)


def text(length: int, seed: int) -> list[int]:
    return torch.randint(3, 300, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def contents(engine: TinyEngine) -> dict[tuple[int, bytes], torch.Tensor]:
    """What each block with a key holds, by group and hash."""
    return {(group, block_hash): held for (group, _, block_hash), held in engine.sealed().items()}


def admitted(engine: TinyEngine, name: str) -> Admitted:
    return next(each for each in engine.events[RequestId(name)] if isinstance(each, Admitted))


@every_model
def test_what_one_engine_computed_another_loads_and_answers_alike(name: str) -> None:
    below = ground(name)
    first, second = below.engine(), below.engine()
    for length in (SIZE + 1, 2 * SIZE, min(150, below.subject.geometry.positions_max - OUTPUT)):
        prompt = text(length, seed=length)
        cold = ask(first, f"{length}", prompt, OUTPUT)
        below.rig.movers.do_all()
        loaded = ask(second, f"{length}", prompt, OUTPUT)
        assert (cold.tokens_cached, loaded.tokens_cached) == (0, (length - 1) // SIZE * SIZE)
        sources = admitted(second, f"{length}").sources
        assert [(source.tier, source.tokens) for source in sources] == [("dram", loaded.tokens_cached)]
        assert compare(loaded, cold, f"{length} tokens from below") >= OUTPUT - 2


@every_model
def test_what_was_loaded_is_the_same_bit_for_bit_and_no_more_than_a_hit_needs(name: str) -> None:
    below = ground(name, dtype=torch.bfloat16)
    first, second = below.engine(), below.engine()
    length = min(150, below.subject.geometry.positions_max - OUTPUT)
    prompt = text(length, seed=9)
    ask(first, "cold", prompt, 1)
    below.rig.movers.do_all()
    second.submit("warm", prompt, 1)
    landed: dict[tuple[int, bytes], torch.Tensor] = {}

    def watch(compute):
        landed.update(contents(second))  # before anything is computed
        return compute()

    second.backend.watch = watch
    second.run()
    known = contents(first)
    assert all(torch.equal(held, known[block]) for block, held in landed.items())
    blocks = (length - 1) // SIZE
    for group, each in enumerate(below.subject.geometry.groups):
        needed = blocks - first_block_of_hit(blocks * SIZE, each.window, SIZE)
        assert sum(block[0] == group for block in landed) == needed


@settings(max_examples=examples(8))
@given(data=st.data())
@pytest.mark.parametrize("name", ["llama-gqa3", "gemma3"])
def test_in_a_pool_too_small_for_two_each_gets_what_it_gets_alone(name: str, data: st.DataObject) -> None:
    below = ground(name)
    engine = below.engine(blocks=12, step_tokens=data.draw(st.sampled_from([16, 40, 200])))
    texts = [text(120, seed) for seed in range(3)]
    alone = [ask(TinyEngine(below.subject), "alone", prompt, 1).logits for prompt in texts]
    order: Sequence[int] = data.draw(st.lists(st.integers(0, 2), min_size=3, max_size=7))
    for turn, which in enumerate(order):
        if data.draw(st.booleans()):
            below.rig.movers.do_all()
        engine.submit(f"{turn}", texts[which], 1)
        if data.draw(st.booleans()):
            engine.run()
        if data.draw(st.integers(0, 4)) == 0:
            engine.core.abort(RequestId(f"{turn}"))
    engine.run()
    for turn, which in enumerate(order):
        for found, wanted in zip(engine.answer(f"{turn}").logits, alone[which], strict=False):
            assert (found - wanted).abs().max().item() <= 1e-3
    event(f"loads: {engine.core.statistics().loads > 0}")
