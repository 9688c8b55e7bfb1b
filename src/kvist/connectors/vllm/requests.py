"""What the scheduler's side is told of vLLM's requests and steps: plain values, made in `reading`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterName:
    """How vLLM tells adapters apart: by name and path, not by what lies there."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One request as it stands now.

    Attributes:
        id: in the engine.
        tokens: its length: the prompt and what was generated.
        prompt_tokens: of them, the prompt.
        computed_tokens: whose KV the engine has, before what the current step computes.
        hashes: of its full hash blocks, first to last; the engine's own list, which grows.
        salt: of the client, which names the tenant.
        adapter: whose weights take part; None: none.
        reads_cache: whether it may begin with KV that was computed before.
    """

    id: str
    tokens: int
    prompt_tokens: int
    computed_tokens: int
    hashes: Sequence[bytes]
    salt: str | None = None
    adapter: AdapterName | None = None
    reads_cache: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """A step that the engine has just planned.

    Attributes:
        scheduled: tokens that it computes, by request.
        requests: a request by its id; None: the engine does not know it.
        blocks_of: a request's block ids now, by vLLM's group index; 0 stands where there is none. None: not known now.
        finished: requests that ended since the last step.
        preempted: requests that lost their blocks since the last step, and begin again from their first token.
    """

    scheduled: Mapping[str, int]
    requests: Callable[[str], EngineRequest | None]
    blocks_of: Callable[[str], tuple[Sequence[int], ...] | None]
    finished: frozenset[str] = frozenset()
    preempted: frozenset[str] = frozenset()
