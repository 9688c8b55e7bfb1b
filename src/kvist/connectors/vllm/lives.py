"""What the scheduler's side remembers of a request from its arrival to its end: whose it is, and how far it was stored.

A request may begin several times: when it is preempted, or when a load of it failed, it starts again from what vLLM
has by then.
"""

from collections.abc import Iterator, Sequence

from kvist.base.ids import BlockHash
from kvist.connectors.vllm.hashes import ForeignChain
from kvist.connectors.vllm.identities import Tenant
from kvist.connectors.vllm.requests import EngineRequest
from kvist.connectors.vllm.settings import Ports, SchedulerSettings


class Life:
    """One request.

    Attributes:
        tenant: whose it is.
        may_load: whether it may begin with what lies below; False once a load of it failed, until it is preempted.
        is_stale: whether it began before the cache was reset, or with what vLLM has kept from before: nothing of it may
            be stored.
        began: whether vLLM has given it blocks.
        reached: tokens that have been computed, or more where guesses of the engine were wrong; None: not known.
        full: blocks that are full, as far as was looked, of those that may be stored.
        wanted: most that may ever be stored; None: no bound.
        settled: blocks of all groups that need not be looked at again, counted group by group within each block.
        is_counted: whether its tokens are in the figures.
        local: tokens that vLLM had itself when a load began.
        planned: tokens by the tier that they were to come from; empty where nothing was loaded.
    """

    __slots__ = (
        "_chain",
        "began",
        "full",
        "is_counted",
        "is_stale",
        "local",
        "may_load",
        "planned",
        "reached",
        "settled",
        "tenant",
        "wanted",
    )

    def __init__(self, tenant: Tenant, chain: ForeignChain | None, *, may_load: bool) -> None:
        """A request that was not given anything yet; without a chain it is neither loaded nor stored."""
        self.tenant = tenant
        self.may_load = may_load and chain is not None
        self._chain = chain
        self.is_counted = False
        self.begin_again()

    @property
    def is_stored(self) -> bool:
        """Whether its blocks may be stored."""
        return self._chain is not None and not self.is_stale

    def chain(self, request: EngineRequest) -> Sequence[BlockHash]:
        """Hashes of its full blocks."""
        return () if self._chain is None else self._chain.extend_to(request.hashes)

    def begin_again(self) -> None:
        """It starts from its first token."""
        self.began = self.is_stale = False
        self.full = self.settled = self.local = 0
        self.reached: int | None = None
        self.wanted: int | None = None
        self.planned: tuple[tuple[str, int], ...] = ()

    def restore_loading(self, *, reads_cache: bool) -> None:
        """It was preempted: a load may be tried again."""
        self.may_load = reads_cache and self._chain is not None


class Lives:
    """All requests.

    Attributes:
        bypassed: how many could not be told apart from others by their adapter.
    """

    def __init__(self, settings: SchedulerSettings, ports: Ports) -> None:
        """Starts with none."""
        self.bypassed = 0
        self._settings = settings
        self._ports = ports
        self._lives: dict[str, Life] = {}

    def __len__(self) -> int:
        return len(self._lives)

    def __iter__(self) -> Iterator[Life]:
        return iter(self._lives.values())

    def get(self, request_id: str) -> Life | None:
        """One that is known."""
        return self._lives.get(request_id)

    def of(self, request: EngineRequest) -> Life:
        """One that is known from now on."""
        life = self._lives.get(request.id)
        if life is None:
            life = self._lives[request.id] = self._born(request)
        return life

    def end(self, request_id: str) -> Life | None:
        """Forgets one."""
        return self._lives.pop(request_id, None)

    def _born(self, request: EngineRequest) -> Life:
        tenant = self._ports.tenants.of(request.salt)
        digest = b"" if request.adapter is None else self._ports.adapter_digest(request.adapter)
        if digest is None:
            self.bypassed += 1
            return Life(tenant, None, may_load=False)
        chain = ForeignChain(tenant.key, self._ports.scheme, adapter=digest, stride=self._settings.stride)
        return Life(tenant, chain, may_load=request.reads_cache)
