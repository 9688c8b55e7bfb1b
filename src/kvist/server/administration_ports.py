"""What the operator's commands need: what the tiers hold, as one stock, and what the model makes of a prompt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kvist.base.ids import TenantId, TokenId
from kvist.blocks.keys import Namespace, TenantKey, TenantTag
from kvist.fabric.messages import Decision, Source, TierBooks, TierName
from kvist.fabric.outcome import Outcome
from kvist.server.ports import Tokenizer
from kvist.tiers.ports import Entry

Means = Callable[[Entry], bool]
"""Whether a record is one of those that somebody asks for."""


def everything(_entry: Entry) -> bool:
    """Means all."""
    return True


class Stock(Protocol):
    """What all tiers hold, of every tenant: the caller says whose it may touch.

    Verbs block until the tiers have done it, at most `timeout_s`, and may be called from several threads at once. They
    count what became of the records that were named, and leave nothing half-done; a tier that fails is counted as well,
    or is a `kvist.base.errors.TierError`. A tier that is not among `tiers` is a `kvist.base.errors.ConfigError`.
    """

    def tiers(self) -> Sequence[TierBooks]:
        """The ledger of each tier, fastest first; touches no medium."""
        ...

    def entries(
        self, tier: TierName, tenant: TenantTag | None, most: int, timeout_s: float, means: Means = everything
    ) -> Sequence[Entry]:
        """What a tier holds of one tenant, or of all, and is meant, up to a number; keeps nothing of the rest.

        Raises:
            TierError: the tier cannot be asked.
        """
        ...

    def pin(self, tier: TierName, entries: Sequence[Entry], timeout_s: float, *, pinned: bool) -> Outcome:
        """Says whether records may be evicted. In a keyed tier a pinned record does not expire either."""
        ...

    def copy(self, source: TierName, target: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """Stores records of one tier in another one as well; those that are there already count as done."""
        ...

    def move(self, source: TierName, target: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """Copies records, and removes from where they were those that have arrived."""
        ...

    def remove(self, tier: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """Forgets records, pinned or not. What is being read goes when that ends."""
        ...

    def purge(self, tier: TierName, tenant: TenantTag | None, timeout_s: float) -> Outcome:
        """Forgets all that is one tenant's, or everything, what is being written included."""
        ...

    def verify(self, tier: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """Reads whole records and checks every byte; what is damaged or missing is taken out of the tier."""
        ...


class Explanation(NamedTuple):
    """How a prompt would begin now.

    Attributes:
        sources: where its cached tokens are.
        decision: how much would be loaded, and why; None where no tier was asked.
        prefix_end: why the cached prefix is not longer.
    """

    sources: Sequence[Source]
    decision: Decision | None
    prefix_end: str


Explain = Callable[[Sequence[TokenId], TenantId, float], Explanation]
"""Asks the engine about a prompt without loading or computing anything, and waits so many seconds at most.

Raises a `TimeoutError` when it does not answer in time, and a `kvist.base.errors.KvistError` when it never will.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What makes hashes of a prompt.

    Attributes:
        open_tokenizer: gives the model's tokenizer, always the same and nobody else's: it is used by one thread at a
            time. The first call may take seconds, and raise a `kvist.base.errors.KvistError`.
        namespace: of its KV.
        block_tokens: tokens per block.
        tokens_max: of one prompt.
        explain: asks the engine; None: it cannot be asked.
    """

    open_tokenizer: Callable[[], Tokenizer]
    namespace: Namespace
    block_tokens: int
    tokens_max: int
    explain: Explain | None


KeyOf = Callable[[TenantId], TenantKey]
"""The key under which a tenant's hashes are made."""
