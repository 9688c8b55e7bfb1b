"""How many bytes the KV pool gets, how they are divided into blocks, and what requests then fit.

Knows shapes and bytes; measures nothing and allocates nothing. `blocks_held_peak` is the one formula for what a
sequence takes: start-up and admission both ask it, so that what start-up promises is what admission grants.
"""

from dataclasses import dataclass, fields
from fractions import Fraction

from kvist.base.errors import CapacityError, ConfigError
from kvist.base.units import Bytes, Tokens, format_bytes
from kvist.geometry.groups import Dtype, KvGroup, ModelGeometry
from kvist.planner.search import largest


def free_memory(system_available: int, cgroup_limit: int | None, cgroup_used: int | None) -> Bytes:
    """Bytes that this process may still take: the smaller of what the system and its control group have left.

    Args:
        system_available: what the system says can be had without swapping.
        cgroup_limit: limit of the control group; None if there is none.
        cgroup_used: what the group uses, page cache that can be dropped not counted; None counts as nothing.

    >>> free_memory(8_000, 6_000, 1_000), free_memory(8_000, None, None), free_memory(8_000, 1_000, 2_000)
    (5000, 8000, 0)
    """
    left = system_available if cgroup_limit is None else min(system_available, cgroup_limit - (cgroup_used or 0))
    return Bytes(max(0, left))


def kv_budget_from_fraction(bytes_total_available: int, bytes_used: int, fraction: float) -> Bytes:
    """Bytes for the KV pool: a fraction of what is free once weights and workspace are in use.

    Args:
        bytes_total_available: memory that this process may have in all.
        bytes_used: how much of it is taken, measured after weights and workspace were really allocated.
        fraction: how much of the rest the pool gets; above 0, at most 1.

    Raises:
        ConfigError: the fraction is out of range.
        CapacityError: nothing is left.

    >>> kv_budget_from_fraction(180 * 10**9, 100 * 10**9, 0.8)
    64000000000
    """
    if not 0 < fraction <= 1:  # NaN compares false and ends here too
        raise ConfigError(f"KV memory fraction {fraction} is out of range; it must be above 0 and at most 1")
    free = bytes_total_available - bytes_used
    # The decimal that was written, not the binary number nearest to it: 0.29 of 100 is 29.
    budget = int(free * Fraction(str(fraction)))
    if budget <= 0:
        raise CapacityError(
            f"no memory is left for KV: {format_bytes(bytes_used)} of {format_bytes(bytes_total_available)} are used;"
            " take a smaller model or free some memory"
        )
    return Bytes(budget)


def blocks_held_peak(group: KvGroup, tokens_total: int, *, step_tokens: int, block_tokens: int) -> int:
    """Most blocks of a group that one sequence holds at once.

    Full attention keeps every token. A window group lets a block go when the window before its last full block
    has passed it, because a later hit can end only there. The most is held when a step begins at the last token of
    a block, which is then neither full nor passed, and the window before that block begins within one:

        |  passed, given back  |  window  |         |  step  |
                         [ block ][ block ][ filling ][ block ]

    Args:
        group: the group.
        tokens_total: tokens of the sequence, prompt and output.
        step_tokens: most tokens of it that one step computes.
        block_tokens: tokens per block.
    """
    whole = _blocks(tokens_total, block_tokens)
    if group.window is None:
        return whole
    return min(whole, _blocks(group.window, block_tokens) + 1 + _blocks(step_tokens - 1, block_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLimits:
    """What the pool is meant to serve; all counts are at least 1.

    Attributes:
        dtype: of the keys and values.
        block_tokens: tokens per block.
        step_tokens: most tokens that one step computes of one sequence.
        sequences_max: sequences running at once.
        model_tokens_max: longest request allowed, prompt and output.
        window_checkpoint_tokens: of a cached sequence, the window before every so many tokens is kept, and the
            one before its end, because a later request is likely to stop matching there.
    """

    dtype: Dtype
    block_tokens: int
    step_tokens: int
    sequences_max: int
    model_tokens_max: Tokens
    window_checkpoint_tokens: Tokens

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "dtype" and value < 1:
                raise ConfigError(f"{each.name} is {value}; it must be at least 1")

    def peak(self, group: KvGroup, tokens: int) -> int:
        """Most blocks of a group that a sequence of this length holds at once."""
        return blocks_held_peak(group, tokens, step_tokens=self.step_tokens, block_tokens=self.block_tokens)

    def block_bytes(self, group: KvGroup) -> Bytes:
        """Bytes of one block of a group."""
        return Bytes(group.bytes_per_token(self.dtype) * self.block_tokens)

    def request_bytes(self, groups: tuple[KvGroup, ...], tokens: int) -> Bytes:
        """Bytes that a request of this length takes at its peak, over all groups."""
        return Bytes(sum(self.peak(group, tokens) * self.block_bytes(group) for group in groups))


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPlan:
    """What start-up decides about the KV pool, and what follows for requests.

    Attributes:
        bytes_budget: bytes that were to be divided; bytes_used: what the blocks take, never more.
        blocks: blocks of each group, in the geometry's order.
        block_bytes: bytes of one block of each group.
        tokens_capacity: tokens whose KV the first group can hold: all of it, or all that its window shows.
        longest_request_tokens: longest request that fits alone, at most the longest allowed.
        requests_at_longest: requests of that length that fit together, at most the sequences allowed at once.
        fits_model_length: whether the longest request that fits is the longest allowed.
        bytes_for_model_length: what one request of the longest length allowed takes.
    """

    bytes_budget: Bytes
    bytes_used: Bytes
    blocks: tuple[int, ...]
    block_bytes: tuple[Bytes, ...]
    tokens_capacity: Tokens
    longest_request_tokens: Tokens
    requests_at_longest: int
    fits_model_length: bool
    bytes_for_model_length: Bytes


def plan_kv(geometry: ModelGeometry, kv_bytes: int, limits: KvLimits) -> KvPlan:
    """Divides the bytes of the KV pool among the groups of a model; see `plan_groups`."""
    return plan_groups(geometry.groups, kv_bytes, limits)


def plan_groups(groups: tuple[KvGroup, ...], kv_bytes: int, limits: KvLimits) -> KvPlan:
    """Divides the bytes of the KV pool among groups, those that see furthest first, and says what fits.

    More bytes never mean fewer blocks of any group. The rule of division is explained at `_divide`.

    Raises:
        CapacityError: the bytes do not hold one block of each group.
    """
    sizes = tuple(limits.block_bytes(group) for group in groups)
    if kv_bytes < sum(sizes):
        raise CapacityError(
            f"{format_bytes(kv_bytes)} of KV memory do not hold one block of {limits.block_tokens} tokens of each KV"
            f" group, which takes {format_bytes(sum(sizes))}; one request of {limits.model_tokens_max} tokens takes"
            f" {format_bytes(limits.request_bytes(groups, limits.model_tokens_max))}"
        )
    blocks = _divide(groups, kv_bytes, limits)
    longest = _longest_request(groups, blocks, limits)
    together = min(have // limits.peak(group, longest) for group, have in zip(groups, blocks, strict=True))
    return KvPlan(
        bytes_budget=Bytes(kv_bytes),
        bytes_used=Bytes(_cost(blocks, sizes)),
        blocks=blocks,
        block_bytes=sizes,
        tokens_capacity=Tokens(blocks[0] * limits.block_tokens),
        longest_request_tokens=Tokens(longest),
        requests_at_longest=min(limits.sequences_max, together),
        fits_model_length=longest == limits.model_tokens_max,
        bytes_for_model_length=limits.request_bytes(groups, limits.model_tokens_max),
    )


def _divide(groups: tuple[KvGroup, ...], budget: int, limits: KvLimits) -> tuple[int, ...]:
    """Blocks of each group, along one path on which no group ever shrinks as the budget grows.

    The first group sees furthest and leads (full attention, where there is any); the others follow from it:

        1. lean: just enough for one request, until that is one of the longest length allowed;
        2. the lead waits while the window groups grow from lean to generous;
        3. generous: all grow together.

    Lean serves the longest request that the bytes can hold at all. Generous is explained at `_generous`.
    """
    sizes = tuple(limits.block_bytes(group) for group in groups)
    if len(groups) == 1:
        return (budget // sizes[0],)
    enough = limits.peak(groups[0], limits.model_tokens_max)
    lead = largest(1, enough, lambda lead: _cost(_lean(groups, lead, limits), sizes) <= budget)
    lean = _lean(groups, lead, limits)
    if lead < enough:
        return lean
    generous = _generous(groups, enough, limits)
    if _cost(generous, sizes) > budget:

        def grown(extra: int) -> tuple[int, ...]:
            return tuple(min(least + extra, most) for least, most in zip(lean, generous, strict=True))

        return grown(largest(0, max(generous), lambda extra: _cost(grown(extra), sizes) <= budget))
    most = budget // sizes[0]
    lead = largest(enough, most, lambda lead: _cost(_generous(groups, lead, limits), sizes) <= budget)
    return _generous(groups, lead, limits)


def _lean(groups: tuple[KvGroup, ...], lead: int, limits: KvLimits) -> tuple[int, ...]:
    """Blocks for one request that fills `lead` blocks of the first group."""
    others = (
        lead if group.window is None else min(lead, limits.peak(group, limits.model_tokens_max)) for group in groups[1:]
    )
    return (lead, *others)


def _generous(groups: tuple[KvGroup, ...], lead: int, limits: KvLimits) -> tuple[int, ...]:
    """Blocks with which neither running sequences nor cached prefixes waste what the first group holds.

    A window group gets the larger of two shares. One is what the longest requests use: for each that fills its
    part of the first group, the blocks it holds while it runs, and the windows kept of it once it is cached. The
    other is for short ones, which are many: the peaks of all sequences that may run at once, but for these no
    more bytes than the first group has. It never gets more blocks than the first group: no sequence holds more,
    and a window without the prefix before it is good for nothing.
    """
    tokens, lead_bytes = limits.model_tokens_max, lead * limits.block_bytes(groups[0])
    per_request = limits.peak(groups[0], tokens)

    def share(group: KvGroup, lean: int) -> int:
        peak = limits.peak(group, tokens)
        checkpoints = tokens // limits.window_checkpoint_tokens + 1
        kept = checkpoints * _blocks(group.window or 0, limits.block_tokens)
        for_long = lead * (peak + kept) // per_request
        for_many = min(limits.sequences_max * peak, lead_bytes // limits.block_bytes(group))
        return max(lean, min(lead, max(for_long, for_many)))

    lean = _lean(groups, lead, limits)
    return (lead, *(share(group, least) for group, least in zip(groups[1:], lean[1:], strict=True)))


def _longest_request(groups: tuple[KvGroup, ...], blocks: tuple[int, ...], limits: KvLimits) -> int:
    most = limits.model_tokens_max
    for group, have in zip(groups, blocks, strict=True):
        # A window that can pass never runs out; until then a sequence holds all its blocks.
        if limits.peak(group, most) > have:
            most = Tokens(min(most, have * limits.block_tokens))
    return most


def _cost(blocks: tuple[int, ...], sizes: tuple[Bytes, ...]) -> int:
    return sum(count * size for count, size in zip(blocks, sizes, strict=True))


def _blocks(tokens: int, block_tokens: int) -> int:
    return -(-tokens // block_tokens)
