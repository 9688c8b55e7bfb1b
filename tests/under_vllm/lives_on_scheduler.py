"""A life of vLLM's own scheduler with Kvist's connector and workers, from a seed: who comes, goes, and takes blocks.

    clients ──▶ vLLM's scheduler ◀──▶ KvistConnector, fabric, tiers
                    │     ▲                 │ shared memory
                    ▼     │                 ▼
               workers of Kvist's around a made-up model

The throws of the dice follow from the seed; when a tier's thread is done with something does not.
"""

import threading
from collections import Counter, deque
from itertools import count
from pathlib import Path

from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import Request, RequestStatus

from fakes.dice import Dice
from kvist.app.clock import SystemClock
from kvist.connectors.vllm.counts import COMPUTED, LOCAL, SchedulerStatistics
from kvist.connectors.vllm.front import Front
from kvist.connectors.vllm.reading import Foreign
from under_vllm.real_workers import Workers
from under_vllm.scheduler_cases import Case, hasher, scheduler_of

_LIVE_MAX = 9
_ENDS_WITHIN_S = 60.0


class SchedulerLife:
    """One engine, from its start to its end.

    Attributes:
        happened: "finished", "preempted", "aborted", "reset", and "refused" for resets that left blocks cached.
    """

    def __init__(self, seed: int, case: Case, *, model: Path, folder: Path) -> None:
        self.dice = Dice(seed)
        self.happened: Counter[str] = Counter()
        self.workers = Workers(case, self.dice)
        self.model = self.workers.model
        self._case = case
        self._hasher = hasher()
        self._scheduler = scheduler_of(case, model, folder)
        self._scheduler.connector.set_xfer_handshake_metadata_pp_aware(self.workers.handshakes())
        self._under_way: deque[tuple[Foreign, Foreign]] = deque()
        self._live: dict[str, Request] = {}
        self._said: list[list[int]] = []
        self._names = count()
        self._is_told = True

    @property
    def front(self) -> Front:
        """Kvist's side in the scheduler."""
        front: Front | None = self._scheduler.connector._own_home.front_if_made
        assert front is not None, "no request has come"
        return front

    def statistics(self) -> SchedulerStatistics:
        """Kvist's figures."""
        statistics = self.front.statistics()
        assert statistics is not None, "an error has ended the use of the cache"
        return statistics

    @property
    def loaded_tokens(self) -> int:
        """Tokens that requests began with, and that a tier had."""
        return sum(tokens for source, tokens in self.statistics().tokens.items() if source not in {LOCAL, COMPUTED})

    def run(self, steps: int) -> None:
        """So many steps, with whatever clients and operators do meanwhile."""
        self._ask()
        for number in range(steps):
            if len(self._live) < _LIVE_MAX and self.dice.number(1, 10) <= 3:
                self._ask()
            self._say_more()
            if self._case.resets and self.dice.number(1, self._case.resets) == 1:
                self._reset()
            self.step()
            assert not self.front.is_detached
            if number % 10 == 0:
                self.front._side.audit()

    def step(self) -> None:
        """Plans and computes a step where one may be under way, and then ends the oldest one."""
        scheduler, most = self._scheduler, 1 + self._case.overlap
        if scheduler.has_requests() and len(self._under_way) < most:
            output = scheduler.schedule()
            assert not output.has_sync_kv_loads, "no request of a step waits for a load"
            self._under_way.append((output, self.workers.run(output)))
            if len(self._under_way) < most and output.total_num_scheduled_tokens:
                return
        if self._under_way:
            output, result = self._under_way.popleft()
            if self._live and self.dice.number(1, 50) == 1:
                self._abort(self.dice.pick(list(self._live)))
            scheduler.update_from_output(output, result)
            self._guess(output)
            self._note_ends()

    def end(self) -> None:
        """Nobody comes any more; nothing may be left, neither of requests nor of orders."""
        for name in [name for name, request in self._live.items() if request.resumable]:
            self._abort(name)
        self._drain()
        self._add([1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True))  # what came late is told with its steps
        self._drain()
        pool = self._scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1, "blocks are missing"
        pause, deadline_s = threading.Event(), SystemClock().now_s() + _ENDS_WITHIN_S
        while self.statistics().fabric.stores_running or self.statistics().fabric.loads_running:
            assert SystemClock().now_s() < deadline_s, self.statistics()
            pause.wait(0.005)
        self._check_nothing_left()

    def close(self) -> None:
        """Ends everything, whatever has happened."""
        self._scheduler.shutdown()
        self.workers.close()

    def _drain(self) -> None:
        deadline_s = SystemClock().now_s() + _ENDS_WITHIN_S
        while self._scheduler.has_requests() or self._under_way:
            self.step()
            assert SystemClock().now_s() < deadline_s, f"these never end: {self._scheduler.requests}"

    def _check_nothing_left(self) -> None:
        found, front = self.statistics(), self.front
        left = (found.requests, found.held, found.orders, found.fabric.staging_bytes_used)
        assert left == (0, 0, 0, 0), found
        side = front._side
        books = (front._requests, front._starts, front._awaited, front._held, front._going, side._lives._lives)
        books += (side._asks._asked, side._loads._loading, side._loads._ending, side._loads._untold)
        books += (side._fabric._asked, *(worker._requests for worker in self.workers.sides))
        assert not any(map(len, books)), books

    def _ask(self) -> None:
        """A question about a document, or about what was said before."""
        dice = self.dice
        if self._said and dice.number(1, 10) <= 3:
            prompt = [*dice.pick(self._said)[:280], dice.number(0, 40)]
        else:
            document = dice.number(1, 5)
            prompt = [document * 100 + place % 97 for place in range(dice.number(1, 260))]
            prompt += [dice.number(0, 40) for _ in range(dice.number(0, 20))]
        self._add(
            prompt,
            SamplingParams(
                max_tokens=dice.number(1, 60), ignore_eos=True, skip_reading_prefix_cache=dice.number(1, 10) == 1
            ),
            cache_salt=dice.pick([None, None, None, "blue"]),
            priority=dice.number(0, 3),
            resumable=self._case.streams and dice.number(1, 10) <= 3,
        )

    def _add(self, prompt: list[int], sampling: SamplingParams, **more: object) -> None:
        name = f"request {next(self._names)}"
        self._live[name] = Request(name, prompt, sampling, None, block_hasher=self._hasher, **more)
        self._scheduler.add_request(self._live[name])

    def _say_more(self) -> None:
        """The next part of some inputs that come in parts."""
        waiting = RequestStatus.WAITING_FOR_STREAMING_REQ
        for name in [name for name, request in self._live.items() if request.status == waiting]:
            if self.dice.number(1, 10) <= 3:
                tokens = [self.dice.number(0, 40) for _ in range(self.dice.number(1, 40))]
                sampling = SamplingParams(max_tokens=self.dice.number(1, 20), ignore_eos=True)
                has_more = self.dice.number(1, 10) <= 6
                more = Request(name, tokens, sampling, None, block_hasher=self._hasher, resumable=has_more)
                self._scheduler.add_request(more)

    def _abort(self, name: str) -> None:
        self.happened["aborted"] += 1
        self._scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def _reset(self) -> None:
        """The weights are replaced, and caches emptied, which vLLM does not do while somebody has blocks."""
        if self.dice.number(1, 2) == 1:
            for name in list(self._live):
                self._abort(name)
            for _ in range(self.dice.number(0, 12)):
                self.step()
        is_again = self.model.is_mixed and self._is_told and self.dice.number(1, 10) <= 7
        if not is_again:
            self.model.era += 1
            self.model.is_mixed = self._is_told = True
        running = self.dice.number(1, 10) <= 4
        try:
            is_empty = self._scheduler.reset_prefix_cache(running, reset_connector=not is_again)
        except RuntimeError:  # vLLM's, before it comes to connectors
            is_empty, self._is_told = False, is_again
        self.happened["reset" if is_empty else "refused"] += 1
        if is_empty:
            self.model.is_mixed = False

    def _guess(self, output: Foreign) -> None:
        if self._case.guesses and output.total_num_scheduled_tokens:
            names = [name for name in self.model.guesses if name in self._scheduler.requests]
            guesses = [self.model.guesses[name] for name in names]
            self._scheduler.update_draft_token_ids(DraftTokenIds(names, guesses))
            self.model.guesses.clear()

    def _note_ends(self) -> None:
        for name in [name for name, request in self._live.items() if request.is_finished()]:
            request = self._live.pop(name)
            self.happened["preempted"] += request.num_preemptions
            if request.status != RequestStatus.FINISHED_ABORTED:
                self.happened["finished"] += 1
                self._said = [*self._said[-29:], list(request.all_token_ids)]
