"""How many blocks vLLM makes of some bytes, and what requests it then takes, by vLLM's own rules.

Knows groups (`kvist.planner.vllm_groups`) and counts; not where the bytes come from. Held to versions 0.32 and 0.33,
and to what earlier ones printed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from kvist.base.errors import CapacityError, ConfigError
from kvist.base.units import Bytes, Tokens, format_bytes
from kvist.planner.search import largest
from kvist.planner.vllm_groups import VllmGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmLimits:
    """What bounds the blocks that one request may hold.

    Attributes:
        step_tokens: most tokens that one step computes (`--max-num-batched-tokens`).
        steps_in_flight: steps begun before the first has ended: 2 with asynchronous scheduling, or the stages of a
            pipeline.
        prefix_caching: whether states are kept for later requests, which takes one more each while a request runs.
        speculative_tokens: drafted per step; each takes a state more.
        context: parts that the tokens of full attention are divided into.
    """

    step_tokens: int
    steps_in_flight: int = 1
    prefix_caching: bool = True
    speculative_tokens: int = 0
    context: int = 1

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), int(each.name not in ("speculative_tokens", "prefix_caching"))
            if value < least:
                raise ConfigError(f"{each.name} is {value}; it must be at least {least}")

    def group_blocks(self, group: VllmGroup, tokens: int) -> int:
        """Most blocks of a group that vLLM lets a request of this length hold."""
        in_flight = self.step_tokens * self.steps_in_flight
        match group.kind:
            case "full":
                return _parts(_parts(tokens, self.context), group.block_tokens)
            case "window":
                # One more, because the window may begin within a block.
                return _parts(min((group.reach or 1) - 1 + in_flight, tokens), group.block_tokens) + 1
            case "chunk":
                return _parts(min((group.reach or 0) + in_flight, tokens), group.block_tokens)
            case "state":
                return 1 + int(self.prefix_caching) + self.speculative_tokens

    def request_blocks(self, groups: Sequence[VllmGroup], tokens: int) -> int:
        """Most blocks of all groups that a request of this length holds; never fewer for a longer one."""
        return sum(self.group_blocks(group, tokens) for group in groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPool:
    """The blocks of every accelerator, and who may hold them.

    Attributes:
        groups: of the whole model; none: nothing is kept, and any request fits.
        blocks: in the pool, of which one is never given out.
        limits: of one request.
    """

    groups: tuple[VllmGroup, ...]
    blocks: int
    limits: VllmLimits

    @property
    def usable(self) -> int:
        """Blocks that requests may hold."""
        return max(0, self.blocks - 1)

    def concurrency(self, tokens: int) -> float:
        """The figure that vLLM prints as "Maximum concurrency", times requests of this length."""
        return self.blocks / self.limits.request_blocks(self.groups, tokens)

    def printed_tokens(self, tokens: int) -> Tokens:
        """The figure that vLLM prints as "KV cache size" since 2026, for this longest length."""
        return Tokens(int(self.concurrency(tokens) * tokens))

    def printed_tokens_before_2026(self) -> Tokens:
        """The figure that vLLM printed as "KV cache size" before."""
        least = min(group.block_tokens for group in self.groups)
        return Tokens(self.blocks // len(self.groups) * least * self.limits.context)

    def requests(self, tokens: int) -> int:
        """Requests of this length that fit together."""
        return self.usable // self.limits.request_blocks(self.groups, tokens)

    def longest_request(self, most: int) -> Tokens:
        """The longest request that fits alone, at most this long; 0: none does."""

        def fits(tokens: int) -> bool:
            return self.limits.request_blocks(self.groups, tokens) <= self.usable

        return Tokens(largest(1, most, fits)) if fits(1) else Tokens(0)


def block_bytes(groups: Sequence[VllmGroup], stage: range) -> Bytes:
    """Bytes that one block takes on an accelerator of a stage; 0 where the stage keeps nothing."""
    return Bytes(max((group.bytes_of(stage) for group in groups), default=0))


def blocks_of(groups: Sequence[VllmGroup], kv_bytes: int, stages: Sequence[range]) -> int:
    """Blocks of the pool: as many as the bytes hold where they take most.

    Args:
        groups: of the whole model.
        kv_bytes: of one accelerator.
        stages: layers of each stage of the pipeline.

    Raises:
        CapacityError: the bytes do not hold one block to give out, and the one that vLLM keeps.
    """
    size = max((block_bytes(groups, stage) for stage in stages), default=0)
    if not size:
        return 1
    if kv_bytes < 2 * size:
        raise CapacityError(
            f"{format_bytes(kv_bytes)} of KV memory do not hold two blocks of {format_bytes(size)}, the least that vLLM"
            " starts with"
        )
    return kv_bytes // size


def _parts(whole: int, size: int) -> int:
    return -(-whole // size)
