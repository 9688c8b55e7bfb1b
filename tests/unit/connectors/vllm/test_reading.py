"""What vLLM hands over with requests and steps becomes our own values, and nothing of it is lost."""

from types import SimpleNamespace

import pytest

from fakes.vllm_objects import Tables, request, scheduler_output
from kvist.connectors.vllm.reading import (
    OwnCache,
    allocated_blocks,
    finished_frees,
    finished_loads,
    request_of,
    step_of,
)
from kvist.connectors.vllm.requests import AdapterName, EngineRequest


def test_a_request_is_read_as_it_stands() -> None:
    theirs = request("r1", cache_salt="s")
    assert request_of(theirs) == EngineRequest(
        id="r1", tokens=40, prompt_tokens=33, computed_tokens=16, hashes=theirs.block_hashes, salt="s"
    )


def test_its_hashes_are_vllms_own_list_which_grows() -> None:
    theirs = request()
    ours = request_of(theirs)
    theirs.block_hashes.append(b"c" * 32)
    assert len(ours.hashes) == 3


def test_an_adapter_is_known_by_name_and_path() -> None:
    adapter = SimpleNamespace(lora_name="sql", lora_path="/adapters/sql", lora_int_id=1)
    assert request_of(request(lora_request=adapter)).adapter == AdapterName(name="sql", path="/adapters/sql")


def test_a_request_that_must_not_read_the_cache_may_still_fill_it() -> None:
    ours = request_of(request(skip_reading_prefix_cache=True))
    assert not ours.reads_cache
    assert ours.hashes


def test_a_request_whose_input_still_grows_is_shown_without_hashes() -> None:
    ours = request_of(request(resumable=True))
    assert not ours.reads_cache
    assert not ours.hashes


def test_a_step_is_read_as_it_was_scheduled() -> None:
    output = scheduler_output(
        num_scheduled_tokens={"a": 16, "b": 1},
        finished_req_ids={"c"},
        preempted_req_ids={"d"},
        kv_connector_block_state=Tables({"a": ([1, 2], [0, 3])}),
    )
    view = step_of(output, {"a": request("a")})
    assert dict(view.scheduled) == {"a": 16, "b": 1}
    assert (view.finished, view.preempted) == ({"c"}, {"d"})
    assert view.blocks_of("a") == ([1, 2], [0, 3])
    assert view.blocks_of("b") is None
    assert view.requests("a") == request_of(request("a"))
    assert view.requests("b") is None


def test_a_step_of_nothing_is_one_too() -> None:
    view = step_of(scheduler_output(), {})
    assert (view.finished, view.preempted, view.blocks_of("a")) == (frozenset(), frozenset(), None)


def test_blocks_and_ended_loads_are_read() -> None:
    assert allocated_blocks(SimpleNamespace(get_block_ids=lambda: ([4], [5]))) == ([4], [5])
    assert finished_loads(SimpleNamespace(finished_recving={"a"})) == {"a"}
    assert finished_loads(SimpleNamespace(finished_recving=None)) == frozenset()
    assert finished_frees(SimpleNamespace(finished_sending={"a"})) == {"a"}
    assert finished_frees(SimpleNamespace(finished_sending=None)) == frozenset()


def test_what_vllm_has_cached_is_of_before_until_it_takes_a_new_map() -> None:
    pool = SimpleNamespace(cached_block_hash_to_block={})
    cache = OwnCache(pool)
    assert cache.is_clean()
    pool.cached_block_hash_to_block[b"a"] = 1
    assert cache.is_clean(), "nothing was reset"
    cache.note_reset()
    assert not cache.is_clean(), "somebody had blocks, so it was not emptied"
    pool.cached_block_hash_to_block.clear()
    assert not cache.is_clean()
    pool.cached_block_hash_to_block = {b"b": 1}
    assert cache.is_clean(), "it was emptied since"
    cache.note_reset()
    assert not cache.is_clean()
    pool.cached_block_hash_to_block = {}
    cache.note_reset()
    pool.cached_block_hash_to_block[b"c"] = 1
    assert cache.is_clean()


def test_a_pool_whose_map_has_gone_is_refused_at_the_start() -> None:
    with pytest.raises(AttributeError, match="cached_block_hash_to_block"):
        OwnCache(SimpleNamespace())


@pytest.mark.parametrize("gone", ["num_tokens", "block_hashes", "lora_request", "resumable"])
def test_an_attribute_that_is_gone_is_an_error_for_the_front_to_catch(gone: str) -> None:
    theirs = request()
    delattr(theirs, gone)
    with pytest.raises(AttributeError, match=gone):
        request_of(theirs)
