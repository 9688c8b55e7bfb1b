"""The engine's counters, and the snapshot that everybody else reads."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from kvist.blocks.pool import BlockPool
from kvist.engine.messages import BlockCounts, EngineStatistics
from kvist.engine.settings import EngineSettings


@dataclass(slots=True, kw_only=True)
class Counters:
    """Events and tokens since start, by the names of `EngineStatistics`."""

    tokens_prompt_cached: int = 0
    tokens_prompt_computed: int = 0
    tokens_recomputed: int = 0
    tokens_output: int = 0
    steps: int = 0
    preemptions: int = 0
    refusals: int = 0
    aborts: int = 0
    finished: int = 0
    failures: int = 0
    out_of_memory: int = 0

    def snapshot(
        self, settings: EngineSettings, pools: Sequence[BlockPool], *, running: int, waiting: int
    ) -> EngineStatistics:
        """The counters with the queues and pools as they are now."""
        return EngineStatistics(
            running=running,
            waiting=waiting,
            blocks=tuple(_block_counts(pool) for pool in pools),
            evictions=sum(pool.statistics().evicted for pool in pools),
            kv_bytes=settings.kv_bytes,
            kv_bytes_per_token=settings.kv_bytes_per_token,
            **asdict(self),
        )


def _block_counts(pool: BlockPool) -> BlockCounts:
    """A pool's blocks as users think of them: used by a request, cached for a later one, or free."""
    books = pool.statistics()
    return BlockCounts(used=books.filling + books.held, cached=books.cached, free=books.free)
