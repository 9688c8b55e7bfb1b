"""Plays calls that a real vLLM made (`under_vllm.recorder`) to the scheduler's side over a fabric, without a vLLM.

Workers are played too: every block holds what its place in a request stands for, copies go through the fabric's memory,
and what is loaded must be what the place that it is loaded for stands for.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fakes.fabric import Rig
from kvist.base.units import Tokens
from kvist.connectors.vllm.front import Front
from kvist.connectors.vllm.identities import Tenants
from kvist.connectors.vllm.orders import CopyOrder, StepOrders, StepReport
from kvist.connectors.vllm.scheduler import SchedulerSide
from kvist.connectors.vllm.settings import Ports, SchedulerSettings
from kvist.connectors.vllm.shapes import EngineGroup, RecordShape, block_tokens_of
from kvist.cost.choice import choose_longest
from kvist.fabric.settings import Policies

PAYLOAD = 1024

Call = Mapping[str, Any]


def recorded(path: Path) -> list[Call]:
    """The calls of one recording."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass
class Outcome:
    """What a side has said, or what it had said when it was recorded.

    Attributes:
        claims: tokens to be loaded, each time that a request was given blocks.
        stored: blocks copied out, by group.
        loaded: blocks copied in, by request and group.
        ends: loads that ended, and whether they had failed.
        freed: requests whose blocks were held, and then not.
    """

    claims: list[tuple[str, int]] = field(default_factory=list)
    stored: set[tuple[int, ...]] = field(default_factory=set)
    loaded: set[tuple[object, ...]] = field(default_factory=set)
    ends: list[tuple[str, bool]] = field(default_factory=list)
    freed: set[str] = field(default_factory=set)

    def takes(self, stores: Sequence[Sequence[int]], loads: Sequence[Sequence[object]]) -> None:
        """Notes copies of a step."""
        self.stored.update(map(tuple, stores))
        self.loaded.update(map(tuple, loads))


def outcome_of(calls: Sequence[Call]) -> Outcome:
    """What the side had said to vLLM."""
    found = Outcome()
    for call in calls:
        match call["call"]:
            case "update_state_after_alloc":
                found.claims.append((call["request"]["request_id"], call["external"]))
            case "build_connector_meta":
                found.takes(call["answer"]["stores"], call["answer"]["loads"])
                found.ends += [(name, failed) for name, failed in call["answer"]["ends"]]
                found.freed.update(call["answer"]["freed"])
    return found


class Replay:
    """One recording, played from its beginning to its end.

    Attributes:
        side: that decides.
        outcome: what it has said so far.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        """Builds what the recorded engine was like, with small records."""
        begin = calls[0]
        assert begin["call"] == "begin", f"a recording begins with {begin['call']!r}"
        self._calls = calls[1:]
        self._chains = {call["request_id"]: call["hashes"] for call in calls if call["call"] == "chain"}
        self._groups = tuple(
            EngineGroup(index=each["index"], layers=("layer",), block_tokens=each["tokens"], window=each["window"])
            for each in begin["groups"]
        )
        self._hash_tokens: int = begin["hash_tokens"]
        block_tokens = block_tokens_of(self._groups)
        self._rig = Rig(
            payloads=[PAYLOAD] * len(self._groups),
            windows=[group.window for group in self._groups],
            names=("dram",),
            staging_records=256,
            tier_records=4096,
            settings={"block_tokens": block_tokens, "policies": Policies(load_choice=choose_longest)},
        )
        forms = self._rig.fabric._desk.settings.forms
        settings = SchedulerSettings(
            groups=self._groups,
            shapes=tuple(
                RecordShape(form=form, engine_blocks=block_tokens // group.block_tokens, shares={})
                for form, group in zip(forms, self._groups, strict=True)
            ),
            hash_tokens=Tokens(self._hash_tokens),
            block_tokens=block_tokens,
            pool_blocks=begin["blocks"],
        )
        ports = Ports(
            clock=self._rig.clock,
            tenants=Tenants(bytes(32)),
            scheme=b"sha256",
            adapter_digest=lambda _: None,
            is_clean=lambda: True,
        )
        self.side = SchedulerSide(self._rig.fabric, settings, ports)
        self._front = Front(self.side, block_tokens=block_tokens, groups=begin["groups_in_all"])
        self._kv: dict[tuple[int, int], bytes] = {}
        self._wanted: dict[str, dict[tuple[int, int], bytes]] = {}
        self._orders: list[StepOrders] = []
        self._ended: set[str] = set()
        self.outcome = Outcome()

    def play(self) -> None:
        """Makes all calls; after each of them everything adds up."""
        for call in self._calls:
            if call["call"] != "chain":
                getattr(self, call["call"])(call)
                self.side.audit()
                assert not self._front.is_detached, f"detached by {call}"

    def close(self) -> None:
        """Ends it; nothing may be left."""
        self._front.close()
        self._rig.close()

    # ---- vLLM's calls, under its own names

    def on_new_request(self, call: Call) -> None:
        self._front.arrived(self._request(call["request"]))

    def get_num_new_matched_tokens(self, call: Call) -> None:
        self._rig.movers.do_all()  # what was asked is answered, as it was by then
        answer = self._front.matched(self._request(call["request"]), call["computed"])
        if call["answer"][0] is not None:
            assert list(answer) == call["answer"], f"{answer} for {call}"

    def update_state_after_alloc(self, call: Call) -> None:
        shown, external = call["request"], call["external"]
        if external:
            self._wanted[shown["request_id"]] = self._stands_for(shown["request_id"], call["blocks"])
        blocks = SimpleNamespace(get_block_ids=lambda: tuple(call["blocks"]))
        self._front.allocated(self._request(shown), blocks, external)
        self.outcome.claims.append((shown["request_id"], external))

    def build_connector_meta(self, call: Call) -> None:
        self._rig.movers.do_all()
        tables = call["blocks"]
        state = None if tables is None else SimpleNamespace(get_block_ids=lambda id_: tuple(tables[id_]))
        output = SimpleNamespace(
            num_scheduled_tokens=call["scheduled"],
            kv_connector_block_state=state,
            finished_req_ids=set(call["finished"]),
            preempted_req_ids=set(call["preempted"]),
        )
        for shown in call["requests"]:
            self._front._requests[shown["request_id"]] = self._request(shown)
        orders = self._front.step(output)
        self._compute(call)
        self._carry_out(orders)

    def update_connector_output(self, call: Call) -> None:
        told = set(call["finished_recving"])
        assert told <= self._ended, f"the loads of {told - self._ended} had ended when this was recorded"
        self._ended -= told
        done = [order.id for orders in self._orders for order in copies_of(orders)]
        self._orders.clear()
        report = StepReport(done=dict.fromkeys(done, 1), copied_bytes=PAYLOAD * len(done)) if done else None
        self._front.reported(report, told)

    def request_finished_all_groups(self, call: Call) -> None:
        self._rig.movers.do_all()
        self._front.finished(self._request(call["request"]), tuple(call["blocks"]))

    # ---- workers

    def _compute(self, call: Call) -> None:
        """What a step computes is in its blocks from then on."""
        for shown in call["requests"]:
            name = shown["request_id"]
            end = shown["num_computed_tokens"] + call["scheduled"].get(name, 0)
            if call["blocks"] is not None and name in call["blocks"]:
                for place, content in self._stands_for(name, call["blocks"][name], end).items():
                    self._kv[place] = content

    def _carry_out(self, orders: StepOrders) -> None:
        self._orders.append(orders)
        for order in orders.stores:
            self._view(order)[:] = self._content(order)
        for request, order in orders.loads:
            wanted = self._wanted[request]
            assert bytes(self._view(order)) == payload([wanted[order.group, block] for block in order.blocks]), order
            self._kv.update({(order.group, block): wanted[order.group, block] for block in order.blocks})
        self._ended.update(end.request for end in orders.ends)
        self.outcome.takes(
            [(order.group, *order.blocks) for order in orders.stores],
            [(request, order.group, *order.blocks) for request, order in orders.loads],
        )
        self.outcome.ends += [(end.request, end.failed) for end in orders.ends]
        self.outcome.freed.update(orders.freed)

    def _content(self, order: CopyOrder) -> bytes:
        return payload([self._kv[order.group, block] for block in order.blocks])

    def _view(self, order: CopyOrder) -> memoryview:
        return self._rig.regions.view(order.buffer)

    def _stands_for(self, name: str, tables: Sequence[Sequence[int]], end: int | None = None) -> dict[Any, bytes]:
        """What each full block of a request stands for, by stored group and block id."""
        found = {}
        for number, group in enumerate(self._groups):
            per_block = group.block_tokens // self._hash_tokens
            for index, block in enumerate(tables[group.index]):
                last = (index + 1) * per_block
                is_full = last <= len(self._chains[name]) and (end is None or last * self._hash_tokens <= end)
                if block and is_full:
                    found[number, block] = f"{number} {self._chains[name][last - 1]}".encode()
        return found

    def _request(self, shown: Mapping[str, Any]) -> SimpleNamespace:
        hashes = [bytes.fromhex(each) for each in self._chains[shown["request_id"]][: shown["hashes"]]]
        usual = {"cache_salt": None, "skip_reading_prefix_cache": False, "resumable": False}
        return SimpleNamespace(lora_request=None, block_hashes=hashes, **usual | shown)


def copies_of(orders: StepOrders) -> Iterator[CopyOrder]:
    """Every copy of a step, out and in."""
    yield from orders.stores
    for load in orders.loads:
        yield load.copy


def payload(contents: Sequence[bytes]) -> bytes:
    """A record's payload, which says what its blocks stand for."""
    return b"".join(blake2b(each).digest() for each in contents).ljust(PAYLOAD, b".")
