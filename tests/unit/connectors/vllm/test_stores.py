import pytest

from fakes.vllm_shape import Shape
from fakes.vllm_side import HYBRID, SideRig, request
from kvist.blocks.keys import Namespace
from kvist.connectors.vllm.requests import EngineRequest, StepView


def stored(rig: SideRig) -> dict[str, int]:
    return dict(rig.side.statistics().stores)


def test_a_block_is_ordered_with_the_step_that_fills_it() -> None:
    rig = SideRig()
    made, tables = request("one", "a", 64, prompt=40), rig.tables(1, 64)
    rig.side.allocated(made, tables, 0)
    lengths = []
    for computed, tokens in ((0, 31), (31, 1), (32, 8), (40, 1), (41, 23)):
        now = request("one", "a", computed + tokens, computed=computed, prompt=40)
        orders = rig.step({"one": tokens}, requests=[now], tables={"one": tables})
        lengths.append([order.blocks for order in orders.stores])
        rig.done(orders)
    assert lengths == [[(1,)], [(2,)], [], [], [(3,), (4,)]]
    rig.life.pass_time(1.0)
    assert stored(rig) == {"done": 4}
    assert rig.claim(request("two", "a", 65)) == 64


def test_tokens_that_were_only_guessed_fill_nothing() -> None:
    rig = SideRig()
    made, tables = request("one", "a", 30), rig.tables(1, 40)
    rig.side.allocated(made, tables, 0)
    orders = rig.step({"one": 40}, requests=[made], tables={"one": tables})
    assert [order.blocks for order in orders.stores] == [(1,)], "ten of the forty tokens are guesses"


def test_what_has_a_copy_is_not_stored_again() -> None:
    rig = SideRig()
    rig.store(request("one", "a", 64))
    orders = rig.store(request("two", "a", 96), first=11)
    assert [order.blocks for order in orders.stores] == [(15,), (16,)]


@pytest.mark.parametrize(("prompt_only", "blocks"), [(False, 5), (True, 2)])
def test_what_was_generated_may_be_left_out(prompt_only: bool, blocks: int) -> None:
    rig = SideRig(offload_prompt_only=prompt_only)
    made, tables = request("one", "a", 80, prompt=40), rig.tables(1, 80)
    rig.side.allocated(made, tables, 0)
    orders = rig.step({"one": 80}, requests=[made], tables={"one": tables})
    assert len(orders.stores) == blocks
    looked: list[str] = []

    def look(request_id: str) -> EngineRequest:
        looked.append(request_id)
        return request(request_id, "a", 96, computed=80, prompt=40)

    rig.side.step(StepView(scheduled={"one": 16, "two": 1}, requests=look, blocks_of=lambda _: None))
    assert ("one" in looked) != prompt_only, "nobody looks at a request of which nothing more is to be stored"


def test_of_windows_the_blocks_before_the_prompts_end_are_stored() -> None:
    rig = SideRig(Shape(groups=((16, None), (16, 24))))
    orders = rig.store(request("one", "a", 400))
    groups = [order.group for order in orders.stores]
    assert groups.count(0) == 25
    assert 0 < groups.count(1) < 25
    assert max(order.blocks for order in orders.stores if order.group == 1) == (50,), "the last one of the window group"


def test_blocks_that_a_window_has_passed_are_not_stored() -> None:
    rig = SideRig(HYBRID)
    made, (full, window) = request("one", "a", 64), rig.tables(1, 64)
    rig.side.allocated(made, (full, window), 0)
    orders = rig.step({"one": 64}, requests=[made], tables={"one": (full, [0, *window[1:]])})
    assert {(order.group, order.blocks) for order in orders.stores} == {(0, (1,)), (0, (2,)), (1, (5, 6))}


def test_what_finds_no_room_is_offered_again_while_the_request_lives() -> None:
    rig = SideRig(staging_records=4)
    made, tables = request("one", "a", 160), rig.tables(1, 160)
    rig.side.allocated(made, tables, 0)
    ordered: list[tuple[int, ...]] = []
    for number in range(30):
        now = request("one", "a", 160 + number, computed=159 + number if number else 0)
        orders = rig.step({"one": 1 if number else 160}, requests=[now], tables={"one": tables})
        ordered += [order.blocks for order in orders.stores]
        rig.done(orders)
        rig.life.pass_time(0.1)
    assert ordered == [(block,) for block in range(1, 11)]
    assert stored(rig)["done"] == 10


def test_a_crowd_of_long_requests_that_are_stored_is_looked_through_bit_by_bit() -> None:
    rig = SideRig(Shape(pool_blocks=20000), staging_records=600)
    for number in range(1, 6):
        rig.store(request(f"part {number}", "a", 16 * 200 * number))
    crowd = [request(f"like {number}", "a", 16 * 1000) for number in range(6)]
    tables = {each.id: rig.tables(1, each.tokens) for each in crowd}
    for each in crowd:
        rig.side.arrived(each)
        rig.side.allocated(each, tables[each.id], 0)
    settled = []
    for _ in range(4):
        assert rig.step({each.id: each.tokens for each in crowd}, requests=crowd, tables=tables).is_empty
        settled.append([rig.side._lives.of(each).settled for each in crowd])
    assert settled == [
        [512, 512, 512, 512, 0, 0],
        [1000, 1000, 1000, 1000, 96, 0],
        [1000, 1000, 1000, 1000, 608, 512],
        [1000, 1000, 1000, 1000, 1000, 1000],
    ]


def test_a_request_that_loses_its_blocks_loses_its_place() -> None:
    rig = SideRig(staging_records=4)
    made, tables = request("one", "a", 160), rig.tables(1, 160)
    rig.side.allocated(made, tables, 0)
    orders = rig.step({"one": 160}, requests=[made], tables={"one": tables})
    count = len(orders.stores)
    assert 0 < count < 10
    rig.done(orders)
    assert rig.step(requests=[made], preempted=["one"]).is_empty
    assert stored(rig) == {"done": count, "dropped": 10 - count}


def test_a_worker_that_cannot_copy_costs_the_block_its_copy() -> None:
    rig = SideRig(Shape(workers=2))
    made, tables = request("one", "a", 32), rig.tables(1, 32)
    rig.side.allocated(made, tables, 0)
    orders = rig.step({"one": 32}, requests=[made], tables={"one": tables})
    rig.done(orders, workers=1, failed=[orders.stores[0].id])
    assert stored(rig) == {}, "the other worker may still write"
    rig.done(orders, workers=1)
    assert stored(rig) == {"failed": 1, "done": 1}
    rig.life.pass_time(1.0)
    assert rig.claim(request("two", "a", 33)) == 0, "the first block is missing"


def test_what_began_before_a_reset_is_not_stored_until_it_begins_again() -> None:
    rig = SideRig()
    made, tables = request("one", "a", 64), rig.tables(1, 64)
    rig.side.allocated(made, tables, 0)
    rig.done(rig.step({"one": 16}, requests=[request("one", "a", 16)], tables={"one": tables}))
    rig.side.reset(Namespace(b"new".ljust(32)))
    rest = request("one", "a", 64, computed=16)
    assert rig.step({"one": 48}, requests=[rest], tables={"one": tables}).stores == ()
    rig.step(requests=[made], preempted=["one"])
    rig.side.matched(made, 0)
    rig.side.allocated(made, tables, 0)
    orders = rig.step({"one": 64}, requests=[made], tables={"one": tables})
    assert len(orders.stores) == 4


def test_what_began_with_what_vllm_kept_at_a_reset_is_not_stored() -> None:
    rig = SideRig()
    rig.life.engine.is_clean = False
    rig.side.reset(Namespace(b"new".ljust(32)))
    tables = {"one": rig.tables(1, 64), "two": rig.tables(11, 64)}
    for name, computed in (("one", 32), ("two", 0)):
        made = request(name, name, 64, computed=computed)
        rig.side.arrived(made)
        rig.side.matched(made, computed)
        rig.side.allocated(made, tables[name], 0)
        orders = rig.step({name: 64 - computed}, requests=[made], tables=tables)
        assert len(orders.stores) == (0 if computed else 4), "all that follows from old KV is as wrong as it is"
    one = request("one", "one", 64)
    rig.step(requests=[one], preempted=["one"])
    rig.side.matched(one, 32)
    rig.side.matched(one, 0)
    rig.side.allocated(one, tables["one"], 0)
    assert len(rig.step({"one": 64}, requests=[one], tables=tables).stores) == 4, "vLLM has given the old blocks away"


def test_a_request_whose_load_failed_from_its_first_block_on_begins_again() -> None:
    rig = SideRig()
    rig.store(request("one", "a", 32))
    made, tables = request("two", "a", 64), rig.tables(1, 64)
    rig.load(made, tables)
    rig.side.reset(Namespace(b"new".ljust(32)))
    rig.done(rig.step(), finished=["two"])
    assert rig.side.matched(made, 0) == (0, False)
    rig.side.allocated(made, tables, 0)
    orders = rig.step({"two": 64}, requests=[made], tables={"two": tables})
    assert len(orders.stores) == 4, "nothing of it is of before the reset"


def test_a_room_given_before_a_reset_is_dropped_when_it_is_filled() -> None:
    rig = SideRig()
    made, tables = request("one", "a", 64), rig.tables(1, 64)
    rig.side.allocated(made, tables, 0)
    orders = rig.step({"one": 64}, requests=[made], tables={"one": tables})
    rig.side.reset(Namespace(b"new".ljust(32)))
    rig.done(orders)
    rig.life.pass_time(1.0)
    assert rig.claim(request("two", "a", 65)) == 0
    assert rig.life.rig.fabric.statistics().staging_bytes_used == 0
