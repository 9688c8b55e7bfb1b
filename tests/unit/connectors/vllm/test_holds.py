from dataclasses import replace

from fakes.vllm_side import FULL, SideRig, request
from kvist.blocks.keys import Namespace

LARGE = replace(FULL, pool_blocks=200)


def full_of_work(**life: object) -> SideRig:
    """Staging is full: of ten blocks of a request that has just ended some were not stored."""
    rig = SideRig(LARGE, **{"staging_records": 4, **life})
    made, tables = request("one", "a", 160), rig.tables(1, 160)
    rig.side.allocated(made, tables, 0)
    orders = rig.step({"one": 160}, requests=[made], tables={"one": tables})
    assert 0 < len(orders.stores) < 10
    rig.done(orders)
    rig.held = rig.side.finished(made, tables)
    return rig


def test_what_is_left_is_stored_while_vllm_keeps_the_blocks() -> None:
    rig = full_of_work()
    assert rig.held
    freed: list[str] = []
    for _ in range(10):
        rig.life.pass_time(0.1)
        orders = rig.step()
        freed += orders.freed
        rig.done(orders)
        rig.side.audit()
    assert freed == ["one"]
    assert rig.side.statistics().stores == {"done": 10}
    assert rig.claim(request("two", "a", 161)) == 160


def test_after_a_few_seconds_the_rest_is_let_go() -> None:
    rig = full_of_work(hold_s=0.0, takes=lambda job, dice, now_s: None)
    assert rig.held
    done = rig.side.statistics().stores["done"]
    assert rig.step().freed == ("one",)
    assert rig.step().is_empty
    assert rig.side.statistics().stores == {"done": done, "dropped": 10 - done}


def test_a_running_request_that_needs_blocks_comes_first() -> None:
    rig = full_of_work(hold_s=60.0, takes=lambda job, dice, now_s: None)
    assert rig.step().is_empty
    assert rig.side.relieve()
    assert rig.step().freed == ("one",)
    assert not rig.side.relieve()


def test_so_does_one_that_waits_and_could_not_begin() -> None:
    rig = full_of_work(hold_s=60.0, names=("dram",), takes=lambda job, dice, now_s: None)
    two, three = request("two", "b", 160), request("three", "c", 15)
    rig.side.matched(three, 0)
    rig.side.allocated(three, rig.tables(50, 15), 0)
    assert rig.step({"three": 15}, requests=[three]).is_empty, "it was given blocks"
    rig.side.matched(two, 0)
    assert rig.step({"three": 1}, requests=[three]).freed == ("one",)


def test_who_waits_for_an_answer_does_not_wait_for_blocks() -> None:
    rig = full_of_work(hold_s=60.0, names=("pool",), takes=lambda job, dice, now_s: None)
    assert rig.side.matched(request("two", "b", 160), 0) == (None, False)
    assert rig.step().is_empty


def test_at_most_a_tenth_of_the_pool_is_held() -> None:
    rig = SideRig(replace(FULL, pool_blocks=99), staging_records=4)
    made, tables = request("one", "a", 160), rig.tables(1, 160)
    rig.side.allocated(made, tables, 0)
    orders = rig.step({"one": 160}, requests=[made], tables={"one": tables})
    assert not rig.side.finished(made, tables), "ten blocks are more than a tenth of 99"
    assert rig.side.statistics().stores["dropped"] == 10 - len(orders.stores)


def test_a_reset_lets_go_of_all() -> None:
    rig = full_of_work(hold_s=60.0)
    rig.side.reset(Namespace(b"new".ljust(32)))
    rig.life.pass_time(1.0)
    orders = rig.step()
    assert (orders.freed, orders.stores) == (("one",), ())


def test_who_has_nothing_left_to_store_is_not_held() -> None:
    rig = SideRig(LARGE)
    rig.store(request("one", "a", 160))
    assert rig.side.statistics().held == 0


def test_who_ends_before_all_was_looked_at_is_held_for_that() -> None:
    rig = SideRig(replace(FULL, pool_blocks=20000), staging_records=600)
    for number in range(1, 7):
        rig.store(request(f"part {number}", "a", 16 * 200 * number))
    made, tables = request("two", "a", 16 * 1200), rig.tables(1, 16 * 1200)
    rig.side.allocated(made, tables, 0)
    assert rig.step({"two": made.tokens}, requests=[made], tables={"two": tables}).is_empty
    assert rig.side.finished(made, tables), "the end of one request is no time to look at thousands of blocks"
    assert [rig.step().freed for _ in range(2)] == [("two",), ()]
    assert rig.side.statistics().stores == {"done": 1200}
