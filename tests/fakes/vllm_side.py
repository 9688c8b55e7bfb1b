"""The scheduler's side alone, call by call: requests by name, steps by hand, workers that do what they are told."""

from collections.abc import Collection, Mapping, Sequence

from blake3 import blake3

from fakes.vllm_life import VllmLife
from fakes.vllm_shape import Shape
from kvist.connectors.vllm.orders import CopyOrder, InOrder, OrderId, StepOrders, StepReport
from kvist.connectors.vllm.requests import AdapterName, EngineRequest, StepView

FULL = Shape()
HYBRID = Shape(groups=((32, None), (16, 24)))


def fine_hashes(name: str, tokens: int) -> list[bytes]:
    """vLLM's hashes of a sequence called so, one per 16 tokens."""
    return [blake3(f"{name} {index}".encode()).digest() for index in range(tokens // 16)]


def request(
    request_id: str,
    name: str,
    tokens: int,
    *,
    computed: int = 0,
    prompt: int | None = None,
    salt: str | None = None,
    adapter: AdapterName | None = None,
    reads_cache: bool = True,
) -> EngineRequest:
    """A request over the sequence called `name`."""
    return EngineRequest(
        id=request_id,
        tokens=tokens,
        prompt_tokens=tokens if prompt is None else prompt,
        computed_tokens=computed,
        hashes=fine_hashes(name, tokens),
        salt=salt,
        adapter=adapter,
        reads_cache=reads_cache,
    )


class SideRig:
    """A side over dram, disk and pool, whose records are short and whose time stands still until it is moved."""

    def __init__(self, shape: Shape = FULL, **life: object) -> None:
        self.shape = shape
        self.life = VllmLife(1, shape, **{"staging_records": 200, "tier_records": 2000, **life})
        self.side = self.life.side

    def tables(self, first: int, tokens: int) -> tuple[list[int], ...]:
        """Block ids from `first` on for so many tokens of each group."""
        found = []
        for size, _ in self.shape.groups:
            count = -(-tokens // size)
            found.append(list(range(first, first + count)))
            first += count
        return tuple(found)

    def step(
        self,
        scheduled: Mapping[str, int] | None = None,
        *,
        requests: Sequence[EngineRequest] = (),
        tables: Mapping[str, Sequence[Sequence[int]]] | None = None,
        preempted: Collection[str] = (),
    ) -> StepOrders:
        """Plans a step."""
        known = {each.id: each for each in requests}
        blocks = {id_: tuple(table) for id_, table in (tables or {}).items()}
        return self.side.step(
            StepView(
                scheduled=dict(scheduled or {}),
                requests=known.get,
                blocks_of=blocks.get,
                preempted=frozenset(preempted),
            )
        )

    def done(
        self, orders: StepOrders, *, workers: int = 1, failed: Collection[OrderId] = (), finished: Collection[str] = ()
    ) -> None:
        """So many workers have carried out all orders of a step."""
        copies: list[CopyOrder | InOrder] = [*orders.stores, *orders.loads]
        numbers = [each.copy.id if isinstance(each, InOrder) else each.id for each in copies]
        report = StepReport(done=dict.fromkeys(numbers, workers), failed=frozenset(failed))
        self.side.reported(report if numbers else None, finished)

    def store(self, made: EngineRequest, first: int = 1) -> StepOrders:
        """A request computes all its tokens and ends; its blocks are in the tiers then."""
        tables = self.tables(first, made.tokens)
        self.side.arrived(made)
        self.side.allocated(made, tables, 0)
        orders = self.step({made.id: made.tokens}, requests=[made], tables={made.id: tables})
        self.done(orders, workers=self.shape.workers)
        self.life.pass_time(5.0)
        if self.side.finished(made, tables):
            last = self.step()
            self.done(last, workers=self.shape.workers)
            assert last.freed == (made.id,), f"{made.id} finds no room"
            self.life.pass_time(5.0)
        return orders

    def claim(self, made: EngineRequest, computed: int = 0) -> int:
        """How many tokens a request may load, once that is known."""
        self.side.arrived(made)
        self.life.pass_time(0.01)
        tokens, takes_steps = self.side.matched(made, computed)
        assert tokens is not None, f"nobody knows what there is of {made.id}"
        assert takes_steps == (tokens > 0)
        return tokens

    def load(self, made: EngineRequest, tables: tuple[Sequence[int], ...], computed: int = 0) -> int:
        """Begins to load what there is of a request; how many tokens."""
        tokens = self.claim(made, computed)
        assert tokens, f"nothing is found of {made.id}"
        self.side.allocated(made, tables, tokens)
        return tokens
