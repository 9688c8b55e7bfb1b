"""A connector that is Kvist's and writes down what vLLM calls it with, for `fakes.vllm_replay` to play without a vLLM.

Of vLLM's objects it writes what Kvist reads, under vLLM's own names. Steps in which nothing happens are left out.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvist.app.vllm import KvistConnector
from kvist.connectors.vllm.orders import StepOrders
from under_vllm.place import RECORDING


class RecordingConnector(KvistConnector):
    """Kvist's connector with a notebook; one call is one line."""

    def __init__(self, vllm_config, role, kv_cache_config) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._told: dict[str, object] = {}
        if self._home is None:
            return
        path = Path(vllm_config.kv_transfer_config.kv_connector_extra_config[RECORDING])
        self._file = path.open("a", encoding="utf-8")  # until the process ends
        groups = [
            {"index": each.group.index, "tokens": each.group.block_tokens, "window": each.group.window}
            for each in self._groups
        ]
        self._note(
            "begin",
            groups=groups,
            groups_in_all=len(kv_cache_config.kv_cache_groups),
            blocks=kv_cache_config.num_blocks,
            hash_tokens=self._home._engine.facts.hash_tokens,
        )

    def on_new_request(self, request) -> None:
        self._told[request.request_id] = request
        self._note("on_new_request", request=_request(request))
        super().on_new_request(request)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        shown = _request(request)
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        self._note("get_num_new_matched_tokens", request=shown, computed=num_computed_tokens, answer=answer)
        return answer

    def update_state_after_alloc(self, request, blocks, num_external_tokens) -> None:
        shown, tables = _request(request), _tables(blocks.get_block_ids())
        self._note("update_state_after_alloc", request=shown, blocks=tables, external=num_external_tokens)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        state = scheduler_output.kv_connector_block_state
        known = {id_: self._told[id_] for id_ in scheduler_output.num_scheduled_tokens}
        preempted = sorted(scheduler_output.preempted_req_ids or ())
        step = {
            "scheduled": dict(scheduler_output.num_scheduled_tokens),
            "requests": [_request(request) for request in known.values()]
            + [_request(self._told[id_]) for id_ in preempted if id_ not in known],
            "blocks": {id_: _tables(state.get_block_ids(id_)) for id_ in known} if state is not None else None,
            "finished": sorted(scheduler_output.finished_req_ids),
            "preempted": preempted,
        }
        meta = super().build_connector_meta(scheduler_output)
        if known or step["finished"] or preempted or not meta.orders.is_empty:
            self._note("build_connector_meta", **step, answer=_orders(meta.orders))
        return meta

    def update_connector_output(self, connector_output) -> None:
        told = sorted(connector_output.finished_recving or ())
        if told or connector_output.kv_connector_worker_meta is not None:
            self._note("update_connector_output", finished_recving=told)
        super().update_connector_output(connector_output)

    def request_finished_all_groups(self, request, block_ids):
        shown, tables = _request(request), _tables(block_ids)
        held, more = super().request_finished_all_groups(request, block_ids)
        self._note("request_finished_all_groups", request=shown, blocks=tables, answer=held)
        chain = [found.hex() for found in request.block_hashes]
        self._note("chain", request_id=self._told.pop(request.request_id).request_id, hashes=chain)
        return held, more

    def _note(self, call: str, **values: object) -> None:
        self._file.write(json.dumps({"call": call} | values) + "\n")
        self._file.flush()


def _request(request) -> Mapping[str, object]:
    """Hashes only by how many there are, which they are is written in the end; flags only where they are set."""
    assert request.lora_request is None, "adapters are not recorded"
    lengths = {name: getattr(request, name) for name in ("num_tokens", "num_prompt_tokens", "num_computed_tokens")}
    flags = {name: getattr(request, name) for name in ("cache_salt", "skip_reading_prefix_cache", "resumable")}
    told = {name: value for name, value in flags.items() if value}
    return {"request_id": request.request_id, "hashes": len(request.block_hashes)} | lengths | told


def _tables(blocks: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(table) for table in blocks]


def _orders(orders: StepOrders) -> Mapping[str, object]:
    return {
        "stores": [[each.group, *each.blocks] for each in orders.stores],
        "loads": [[each.request, each.copy.group, *each.copy.blocks] for each in orders.loads],
        "ends": [[each.request, each.failed] for each in orders.ends],
        "freed": list(orders.freed),
    }
