"""What vLLM hands over with each request and each step, as our own values.

This module and `kvist.connectors.vllm.reading_config` are the only ones that read attributes of vLLM's objects.
Duck-typed: vLLM is not imported, so that this can be tested without it. Plain attribute access, because every request
of every step passes here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from kvist.connectors.vllm.requests import AdapterName, EngineRequest, StepView

Foreign: TypeAlias = Any
"""An object of vLLM's, whose types are not known here."""

Blocks = tuple[Sequence[int], ...]
"""Block ids of a request, by vLLM's group."""


class OwnCache:
    """vLLM's own cache of blocks: whether all of it was computed with what vLLM computes with now.

    At a reset vLLM empties it before it tells connectors, unless somebody has blocks: then it keeps everything, tells
    whoever asked that this has failed, and tells connectors all the same.
    """

    def __init__(self, pool: Foreign) -> None:
        """Looks at the pool of blocks of vLLM's."""
        self._pool = pool
        self._kept: Foreign = None
        self.note_reset()

    def note_reset(self) -> None:
        """The caches are reset: what this one still has is of before."""
        found = self._pool.cached_block_hash_to_block
        self._kept = found if len(found) else None

    def is_clean(self) -> bool:
        """Whether nothing of before the last reset may be in it; vLLM takes a new map whenever it empties it."""
        return self._kept is None or self._kept is not self._pool.cached_block_hash_to_block


def request_of(request: Foreign) -> EngineRequest:
    """A request as it stands now; its hashes stay vLLM's own list, which grows.

    Of one whose input is still growing vLLM may take back tokens and hashes, so it is shown without any: nothing of it
    is looked for or kept.
    """
    adapter = request.lora_request
    return EngineRequest(
        id=request.request_id,
        tokens=request.num_tokens,
        prompt_tokens=request.num_prompt_tokens,
        computed_tokens=request.num_computed_tokens,
        hashes=() if request.resumable else request.block_hashes,
        salt=request.cache_salt,
        adapter=None if adapter is None else AdapterName(name=adapter.lora_name, path=adapter.lora_path),
        reads_cache=not (request.skip_reading_prefix_cache or request.resumable),
    )


def step_of(output: Foreign, requests: Mapping[str, Foreign]) -> StepView:
    """A step as vLLM has just scheduled it.

    Args:
        output: what vLLM hands over.
        requests: that have arrived and not finished, by id.
    """
    state = output.kv_connector_block_state

    def view(request_id: str) -> EngineRequest | None:
        found = requests.get(request_id)
        return None if found is None else request_of(found)

    def blocks_of(request_id: str) -> Blocks | None:
        found: Blocks | None = None if state is None else state.get_block_ids(request_id)
        return found

    return StepView(
        scheduled=output.num_scheduled_tokens,
        requests=view,
        blocks_of=blocks_of,
        finished=frozenset(output.finished_req_ids),
        preempted=frozenset(output.preempted_req_ids or ()),
    )


def allocated_blocks(blocks: Foreign) -> Blocks:
    """A request's block ids, by group."""
    found: Blocks = blocks.get_block_ids()
    return found


def finished_loads(output: Foreign) -> frozenset[str]:
    """Requests whose loads vLLM was just told are over."""
    return frozenset(output.finished_recving or ())


def finished_frees(output: Foreign) -> frozenset[str]:
    """Requests whose blocks vLLM gives back now, as it was just told."""
    return frozenset(output.finished_sending or ())
