"""Two of Kvist's workers around a made-up model, which tell vLLM's scheduler what its own workers would."""

import copy
from collections.abc import Sequence

from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from fakes.dice import Dice
from kvist.app.clock import SystemClock
from kvist.app.vllm import KvistHandshake, KvistReport
from kvist.app.vllm_system import running_system
from kvist.base.units import Tokens
from kvist.connectors.vllm.device_copies import Copies
from kvist.connectors.vllm.host_copies import Done
from kvist.connectors.vllm.reach import WorkerFacts
from kvist.connectors.vllm.reading import Foreign
from kvist.connectors.vllm.shapes import CANONICAL, EngineGroup
from kvist.connectors.vllm.worker import WorkerSide
from under_vllm.made_up_model import Model
from under_vllm.scheduler_cases import BLOCK_TOKENS, CELL, Case

WORKERS = 2


class FailingCopies:
    """Copies of which one in so many does nothing and fails."""

    def __init__(self, inner: Copies, dice: Dice, one_in: int) -> None:
        self._inner = inner
        self._dice = dice
        self._one_in = one_in
        self.in_bytes = inner.in_bytes
        self.out_bytes = inner.out_bytes

    def copy_out(self, blocks: Sequence[int], into: memoryview) -> Done:
        self._perhaps_fail()
        return self._inner.copy_out(blocks, into)

    def copy_in(self, blocks: Sequence[int], source: memoryview) -> Done:
        self._perhaps_fail()
        return self._inner.copy_in(blocks, source)

    def _perhaps_fail(self) -> None:
        if self._dice.number(1, self._one_in) == 1:
            raise OSError("as rehearsed")


class Workers:
    """What vLLM's executor and model runners are: a step in, what its workers say together out.

    Attributes:
        sides: one of each worker.
        failed_loads: steps after which a worker tells that something could not be loaded.
    """

    def __init__(self, case: Case, dice: Dice) -> None:
        self.model = Model(case, WORKERS, dice)
        self.failed_loads = 0
        self._case = case
        self._dice = dice
        self._together = KVOutputAggregator(WORKERS)
        groups = [
            EngineGroup(
                index=index,
                layers=(f"layer.{index}",),
                block_tokens=Tokens(BLOCK_TOKENS),
                window=None if window is None else Tokens(window - 1),
            )
            for index, window in enumerate(case.windows)
        ]
        self.sides = [self._side(groups, rank) for rank in range(WORKERS)]

    def handshakes(self) -> dict[tuple[int, int], KvistHandshake]:
        """What workers say of themselves before the first request, by pipeline and tensor rank."""
        return {(0, rank): KvistHandshake(side.shape()) for rank, side in enumerate(self.sides)}

    def run(self, output: Foreign) -> Foreign:
        """One step."""
        for side in self.sides:
            side.begin(output.kv_connector_metadata.orders)
            self._rehearse(side)
        sampled = self.model.run(output)
        return self._together.aggregate([self._answered(side, output, sampled) for side in self.sides])

    def close(self) -> None:
        """Gives up shared memory."""
        for side in self.sides:
            side.close()

    def _side(self, groups: Sequence[EngineGroup], rank: int) -> WorkerSide:
        facts = WorkerFacts(
            pipeline_rank=0,
            tensor_rank=rank,
            machine=running_system(),
            packing=CANONICAL,
            replicas=1,
            block_bytes=tuple(BLOCK_TOKENS * CELL * 4 for _ in groups),
            whole_requests=len(groups) > 1,
        )
        side = WorkerSide(groups, facts, SystemClock())
        kv = self.model.kv[rank]
        side.register({group.layers[0]: kv for group in groups}, self._case.blocks)
        return side

    def _rehearse(self, side: WorkerSide) -> None:
        if self._case.fails and not any(isinstance(each, FailingCopies) for each in side._reach.copies):
            copies = side._reach.copies
            side._reach.copies = tuple(FailingCopies(each, self._dice, self._case.fails) for each in copies)

    def _answered(self, side: WorkerSide, output: Foreign, sampled: list[list[int]]) -> Foreign:
        """What one worker says after a step."""
        side.load()
        if not self._case.late:
            side.store()
        results, report = side.results(), side.report()
        self.failed_loads += bool(results.failed or results.invalid)
        told = KVConnectorOutput(
            finished_sending=set(results.freed),
            finished_recving=set(results.finished),
            failed_recving=set(results.failed),
            invalid_block_ids=set(results.invalid),
            kv_connector_worker_meta=None if report is None else KvistReport(report),
        )
        if self._case.late:
            side.store()
        names = list(output.num_scheduled_tokens)
        if not names:
            return copy.copy(ModelRunnerOutput.with_kv_conn_output_only(told))
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=told,
        )
