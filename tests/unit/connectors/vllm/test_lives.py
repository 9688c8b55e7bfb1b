from fakes.vllm_side import SideRig, request
from kvist.connectors.vllm.lives import Lives
from kvist.connectors.vllm.requests import AdapterName

SQL = AdapterName(name="sql", path="/a")
UNKNOWN = AdapterName(name="x", path="/")


def lives() -> Lives:
    side = SideRig().side
    return Lives(side._settings, side._ports)


def test_a_request_is_known_from_its_arrival_to_its_end() -> None:
    found = lives()
    assert found.get("one") is None
    life = found.of(request("one", "a", 64))
    assert found.of(request("one", "a", 80)) is found.get("one") is life
    assert list(found) == [life]
    assert found.end("one") is life
    assert found.end("one") is None
    assert len(found) == 0


def test_salt_and_adapter_part_equal_tokens() -> None:
    found = lives()
    made = [
        request("one", "a", 64),
        request("two", "a", 64, salt="blue"),
        request("three", "a", 64, adapter=SQL),
        request("four", "a", 64, salt="blue", adapter=SQL),
    ]
    assert len({found.of(each).chain(each)[0] for each in made}) == 4
    assert found.of(made[0]).tenant == found.of(made[2]).tenant
    assert found.of(made[0]).tenant != found.of(made[1]).tenant


def test_who_cannot_be_told_from_others_uses_nothing_and_leaves_nothing() -> None:
    found = lives()
    made = request("one", "a", 64, adapter=UNKNOWN)
    life = found.of(made)
    assert (life.chain(made), life.may_load, life.is_stored, found.bypassed) == ((), False, False, 1)
    life.restore_loading(reads_cache=True)
    assert not life.may_load


def test_a_request_that_may_not_read_the_cache_is_stored() -> None:
    life = lives().of(request("one", "a", 64, reads_cache=False))
    assert (life.may_load, life.is_stored) == (False, True)


def test_beginning_again_forgets_how_far_it_was() -> None:
    life = lives().of(request("one", "a", 64))
    life.began = life.is_stale = True
    life.full, life.settled, life.reached, life.local, life.planned = 4, 3, 64, 16, (("dram", 32),)
    life.may_load = False
    life.begin_again()
    assert (life.began, life.is_stale, life.full, life.settled, life.reached) == (False, False, 0, 0, None)
    assert (life.local, life.planned, life.may_load) == (0, (), False)
    life.restore_loading(reads_cache=True)
    assert life.may_load
