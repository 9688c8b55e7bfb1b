"""What the engine may rely on from the tiers below it: `Loads` and `Stores` together, as `Tiers`.

An implementation joins by one entry in BELOW: a class that makes it over two groups, of which the second looks back
WINDOW tokens only, and lets its own work go on when told to. `NoTiers` keeps the same promises about nothing.
"""

from collections.abc import Callable, Sequence

import pytest

from fakes.below import DictTiers
from fakes.fabric import BLOCK_TOKENS, BLUE, RED, Rig, chain_of
from kvist.base.ids import BlockHash, GroupId
from kvist.base.units import Tokens
from kvist.blocks.keys import TenantTag
from kvist.blocks.window import first_block_of_hit
from kvist.cost.choice import choose_longest
from kvist.engine.below import Loads, NoTiers, Stores, Tiers
from kvist.fabric.control import Fabric
from kvist.fabric.messages import Declined, Offer, Plan, Query, Room, Ticket
from kvist.fabric.settings import Policies
from kvist.tiers.regions import Buffer

WINDOW = 2 * BLOCK_TOKENS
GROUPS = (GroupId(0), GroupId(1))


class FabricTrial:
    """The real fabric over three tiers, whose movers do their jobs when told to."""

    def __init__(self) -> None:
        payload = 8 * BLOCK_TOKENS
        self._rig = Rig(
            payloads=(payload, payload),
            windows=(None, WINDOW),
            staging_records=64,
            settings={"policies": Policies(load_choice=choose_longest)},
        )
        self.tiers: Tiers = self._rig.fabric

    def view(self, buffer: Buffer) -> memoryview:
        return self._rig.regions.view(buffer)

    def go_on(self) -> None:
        self._rig.movers.do_all()


class DictTrial:
    """The dictionaries."""

    def __init__(self) -> None:
        self._inner = DictTiers((None, WINDOW), BLOCK_TOKENS)
        self.tiers: Tiers = self._inner

    def view(self, buffer: Buffer) -> memoryview:
        return self._inner.view(buffer)

    def go_on(self) -> None:
        self._inner.tick()


Trial = FabricTrial | DictTrial
BELOW: dict[str, type[Trial]] = {Fabric.__name__: FabricTrial, DictTiers.__name__: DictTrial}


@pytest.fixture(params=BELOW)
def make(request: pytest.FixtureRequest) -> Callable[[], Trial]:
    """Makes tiers of each kind, empty."""
    return BELOW[request.param]


def content(group: int, index: int) -> bytes:
    return bytes([group + 1, index + 1]) * (4 * BLOCK_TOKENS)


def offer(
    trial: Trial, chain: Sequence[BlockHash], group: int, index: int, tenant: TenantTag = BLUE
) -> Room | Declined:
    return trial.tiers.offer(Offer(tenant=tenant, group=GroupId(group), hash=chain[index], index=index))


def fill(trial: Trial, chain: Sequence[BlockHash], *, tenant: TenantTag = BLUE) -> None:
    """Stores every block of both groups."""
    for index in range(len(chain)):
        rooms = []
        for group in GROUPS:
            room = offer(trial, chain, group, index, tenant)
            assert isinstance(room, Room), room
            trial.view(room.buffer)[:] = content(group, index)
            rooms.append(room)
        trial.tiers.store(rooms)
        trial.go_on()


def ask(trial: Trial, chain: Sequence[BlockHash], *, tokens: int | None = None, tenant: TenantTag = BLUE) -> Ticket:
    """Begins, and waits for the answer."""
    length = Tokens(len(chain) * BLOCK_TOKENS + 1 if tokens is None else tokens)
    ticket = trial.tiers.begin(Query(tenant=tenant, chain=chain, tokens=length))
    assert ticket is not None
    trial.go_on()
    assert trial.tiers.is_answered(ticket)
    return ticket


def plan(trial: Trial, ticket: Ticket, *resident: set[int]) -> Plan:
    """For an engine that holds these blocks of each group."""
    sets = resident or (set(), set())
    return trial.tiers.plan(ticket, [[index in held for index in range(32)] for held in sets])


def wanted(found: Plan) -> list[tuple[int, int]]:
    return sorted((want.group, want.index) for want in found.wants)


def needed(blocks: int) -> list[tuple[int, int]]:
    """What a hit of so many blocks needs."""
    first = first_block_of_hit(blocks * BLOCK_TOKENS, Tokens(WINDOW), BLOCK_TOKENS)
    return [(0, index) for index in range(blocks)] + [(1, index) for index in range(first, blocks)]


def receive(trial: Trial, ticket: Ticket) -> dict[tuple[int, int], bytes]:
    """Takes what lands until the load has come to its end."""
    found: dict[tuple[int, int], bytes] = {}
    for _ in range(1000):
        pieces = trial.tiers.landed(ticket)
        for piece in pieces:
            name = (piece.want.group, piece.want.index)
            assert name not in found, f"{name} landed twice"
            found[name] = bytes(trial.view(piece.buffer))
        trial.tiers.taken(ticket, pieces)
        if trial.tiers.state(ticket) != "loading":
            return found
        trial.go_on()
    raise AssertionError(f"it loads for ever: {found.keys()}")


class TestTiers:
    def test_what_was_stored_comes_back_bit_for_bit(self, make: Callable[[], Trial]) -> None:
        trial, chain = make(), chain_of("a", 5)
        fill(trial, chain)
        ticket = ask(trial, chain)
        found = plan(trial, ticket)
        assert (found.tokens, wanted(found)) == (5 * BLOCK_TOKENS, needed(5))
        trial.tiers.load(ticket, found)
        assert receive(trial, ticket) == {(group, index): content(group, index) for group, index in needed(5)}
        assert trial.tiers.state(ticket) == "complete"
        trial.tiers.drop(ticket)

    def test_what_the_engine_has_is_not_loaded(self, make: Callable[[], Trial]) -> None:
        trial, chain = make(), chain_of("a", 5)
        fill(trial, chain)
        ticket = ask(trial, chain)
        found = plan(trial, ticket, {0, 1, 3}, {4})
        assert (found.tokens, wanted(found)) == (5 * BLOCK_TOKENS, [(0, 2), (0, 4), (1, 3)])
        everything = plan(trial, ticket, set(range(5)), set(range(5)))
        assert (everything.tokens, everything.wants) == (5 * BLOCK_TOKENS, ())
        trial.tiers.drop(ticket)

    def test_planning_holds_nothing_and_may_be_repeated(self, make: Callable[[], Trial]) -> None:
        trial, chain = make(), chain_of("a", 3)
        fill(trial, chain)
        ticket = ask(trial, chain)
        first = plan(trial, ticket)
        assert wanted(plan(trial, ticket)) == wanted(first)
        assert list(trial.tiers.landed(ticket)) == []
        trial.tiers.drop(ticket)

    @pytest.mark.parametrize(("tokens", "blocks"), [(1, 0), (BLOCK_TOKENS, 0), (BLOCK_TOKENS + 1, 1), (64, 3), (65, 4)])
    def test_one_token_is_always_left(self, make: Callable[[], Trial], tokens: int, blocks: int) -> None:
        trial, chain = make(), chain_of("a", 4)
        fill(trial, chain)
        ticket = ask(trial, chain[: tokens // BLOCK_TOKENS], tokens=tokens)
        found = plan(trial, ticket)
        assert (found.tokens, wanted(found)) == (blocks * BLOCK_TOKENS, needed(blocks))
        trial.tiers.drop(ticket)

    def test_of_what_nobody_stored_nothing_is_wanted(self, make: Callable[[], Trial]) -> None:
        trial, chain = make(), chain_of("a", 4)
        ticket = ask(trial, chain)
        assert (plan(trial, ticket).tokens, plan(trial, ticket).wants) == (0, ())
        assert plan(trial, ticket, {0, 1}, {0, 1}).tokens == 2 * BLOCK_TOKENS
        trial.tiers.drop(ticket)

    def test_another_tenant_finds_nothing(self, make: Callable[[], Trial]) -> None:
        trial, chain = make(), chain_of("a", 3)
        fill(trial, chain, tenant=RED)
        ticket = ask(trial, chain, tenant=BLUE)
        assert plan(trial, ticket).wants == ()
        trial.tiers.drop(ticket)

    def test_a_hole_ends_the_prefix(self, make: Callable[[], Trial]) -> None:
        trial, chain = make(), chain_of("a", 6)
        fill(trial, chain[:2])
        ticket = ask(trial, chain)
        assert (plan(trial, ticket).tokens, wanted(plan(trial, ticket))) == (2 * BLOCK_TOKENS, needed(2))
        trial.tiers.drop(ticket)

    def test_what_is_stored_is_declined_and_known(self, make: Callable[[], Trial]) -> None:
        trial, chain = make(), chain_of("a", 2)
        assert not trial.tiers.has_copy(GROUPS[0], chain[0])
        fill(trial, chain[:1])
        assert offer(trial, chain, 0, 0) == Declined(reason="stored")
        assert trial.tiers.has_copy(GROUPS[0], chain[0])
        assert not trial.tiers.has_copy(GROUPS[0], chain[1])

    def test_what_was_withdrawn_is_not_there_and_may_be_offered_again(self, make: Callable[[], Trial]) -> None:
        trial, chain = make(), chain_of("a", 1)
        for _ in range(200):  # room is not used up
            room = offer(trial, chain, 0, 0)
            assert isinstance(room, Room)
            trial.tiers.withdraw(room)
            trial.go_on()
        assert not trial.tiers.has_copy(GROUPS[0], chain[0])
        fill(trial, chain)
        assert trial.tiers.has_copy(GROUPS[0], chain[0])

    def test_room_may_be_short_for_a_while_and_never_for_ever(self, make: Callable[[], Trial]) -> None:
        trial, chain = make(), chain_of("a", 1000)
        for index in range(1000):
            room = offer(trial, chain, 0, index)
            if room == Declined(reason="busy"):
                trial.go_on()
                room = offer(trial, chain, 0, index)
            assert isinstance(room, Room), room
            trial.view(room.buffer)[:] = content(0, 1)
            trial.tiers.store([room])
        trial.go_on()

    @pytest.mark.parametrize("state", ["asked", "answered", "planned", "loading", "landed", "complete"])
    def test_a_ticket_may_be_dropped_in_every_state_and_twice(self, make: Callable[[], Trial], state: str) -> None:
        trial, chain = make(), chain_of("a", 3)
        fill(trial, chain)
        for _ in range(50):  # nothing is used up
            drop_when(trial, chain, state)
        ticket = ask(trial, chain)
        trial.tiers.load(ticket, plan(trial, ticket))
        assert len(receive(trial, ticket)) == len(needed(3))
        trial.tiers.drop(ticket)

    def test_time_alone_changes_nothing_where_nothing_is_open(self, make: Callable[[], Trial]) -> None:
        trial = make()
        assert trial.tiers.next_deadline_s() is None
        fill(trial, chain_of("a", 1))
        assert trial.tiers.next_deadline_s() is None

    def test_who_listens_hears_of_what_arrives(self, make: Callable[[], Trial]) -> None:
        trial, chain, heard = make(), chain_of("a", 3), []
        fill(trial, chain)
        trial.tiers.on_change = lambda: heard.append("something")
        ticket = ask(trial, chain)
        trial.tiers.load(ticket, plan(trial, ticket))
        heard.clear()
        trial.go_on()
        assert heard
        trial.tiers.drop(ticket)


def drop_when(trial: Trial, chain: Sequence[BlockHash], state: str) -> None:
    """Takes a ticket as far as a state, and drops it there."""
    ticket = trial.tiers.begin(Query(tenant=BLUE, chain=chain, tokens=Tokens(len(chain) * BLOCK_TOKENS + 1)))
    assert ticket is not None
    if state != "asked":
        trial.go_on()
        assert trial.tiers.is_answered(ticket)
    if state in {"planned", "loading", "landed", "complete"}:
        found = plan(trial, ticket)
        if state != "planned":
            trial.tiers.load(ticket, found)
    if state == "landed":
        trial.go_on()
        assert trial.tiers.landed(ticket)
    if state == "complete":
        receive(trial, ticket)
    trial.tiers.drop(ticket)
    trial.tiers.drop(ticket)
    trial.go_on()


def test_where_there_are_no_tiers_there_is_nothing_to_ask_or_wait_for() -> None:
    tiers: Loads | Stores = NoTiers()
    chain = chain_of("a", 3)
    assert tiers.begin(Query(tenant=BLUE, chain=chain, tokens=Tokens(49))) is None
    assert tiers.offer(Offer(tenant=BLUE, group=GROUPS[0], hash=chain[0], index=0)) == Declined(reason="no tier")
    assert not tiers.has_copy(GROUPS[0], chain[0])
    tiers.store([])
    tiers.drop(Ticket(3))
    tiers.learn_prefill(0, 16, 1.0)
    assert tiers.next_deadline_s() is None
    assert tiers.statistics() is None


@pytest.mark.parametrize("verb", ["is_answered", "plan", "load", "landed", "taken", "state"])
def test_where_there_are_no_tiers_no_ticket_was_given(verb: str) -> None:
    rest = {"plan": ((),), "load": (None,), "taken": ((),)}
    with pytest.raises(AssertionError, match="ticket 3 was not given here"):
        getattr(NoTiers(), verb)(Ticket(3), *rest.get(verb, ()))
