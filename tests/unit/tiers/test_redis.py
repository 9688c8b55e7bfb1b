"""Whatever a hostile server says, each verb ends with an error of the tier, in time and without growing."""

import tracemalloc
from collections.abc import Callable

import pytest

from fakes.redis_peer import redis_peer
from fakes.tiers import BLUE, key_of, read_of, write_of
from kvist.app.clock import SystemClock
from kvist.base.errors import TierError, TierFullError, TierUnavailableError
from kvist.tiers.ports import Absent, Address, Damaged, Found
from kvist.tiers.redis import RedisTier
from kvist.tiers.redis_settings import RedisServer, RedisSettings

TIMEOUT_S = 0.05
ADDRESSES = [Address(key=key_of(number), tenant=BLUE) for number in range(3)]
VERBS: dict[str, Callable[[RedisTier], object]] = {
    "find": lambda tier: tier.find(ADDRESSES),
    "read": lambda tier: tier.read([read_of(address) for address in ADDRESSES]),
    "write": lambda tier: tier.write([write_of(address) for address in ADDRESSES]),
    "delete": lambda tier: tier.delete(ADDRESSES),
    "pin": lambda tier: tier.keep(ADDRESSES, pinned=True, expires_unix_s=None),
    "keep": lambda tier: tier.keep(ADDRESSES, pinned=False, expires_unix_s=None),
    "entries": lambda tier: list(tier.entries()),
}
HOSTILE: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "another protocol": (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""),
    "an endless line": (b"+", b"x" * 65_536),
    "an endless string": (b"$9999999999\r\n", b"x" * 65_536),
    "a long string": (b"$1000000\r\n", b"x" * 65_536),
    "endless replies": (b"", b":1\r\n" * 10_000),
    "an endless array": (b"*2\r\n$1\r\n0\r\n*999999999\r\n", b"$1\r\na\r\n" * 10_000),
    "endless nesting": (b"", b"*1\r\n" * 10_000),
    "half a reply": (b"$608\r\nab", b""),
    "binary": (bytes(range(256)), b""),
    "a wrong redirection": (b"-MOVED\r\n" * 9, b""),
}


def tier_over(port: int, timeout_s: float = 5.0) -> RedisTier:
    return RedisTier("pool", RedisSettings(server=RedisServer(port=port), timeout_s=timeout_s), SystemClock())


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_server_is_an_error_within_time_and_memory(kind: str, verb: str) -> None:
    with redis_peer(*HOSTILE[kind]) as peer:
        tier = tier_over(peer.port, TIMEOUT_S)
        tracemalloc.start()
        try:
            answer = VERBS[verb](tier)
        except TierError as error:
            answer = error
        grown = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        tier.close()
    # A list of numbers is an answer, whoever gives it; what they are for was not theirs to know.
    assert isinstance(answer, TierError) or (kind == "endless replies" and verb in {"find", "delete", "pin", "keep"})
    assert grown < 64 * 2**20


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"-ERR unknown command\r\n", TierUnavailableError),
        (b"-NOPERM no\r\n", TierUnavailableError),
        (b"-READONLY no\r\n", TierUnavailableError),
        (b"-MOVED 1 127.0.0.1:1\r\n", TierUnavailableError),
        (b"-LOADING wait\r\n", TierUnavailableError),
        (b"-OOM full\r\n", TierFullError),
    ],
)
def test_an_error_of_the_server_is_one_of_the_tier(line: bytes, kind: type[TierError], verb: str) -> None:
    with redis_peer(line * (6 if verb == "pin" else 3)) as peer:
        tier = tier_over(peer.port)
        with pytest.raises(kind, match="pool: Redis at 127"):
            VERBS[verb](tier)
        tier.close()


def test_each_record_has_its_own_outcome() -> None:
    whole = write_of(ADDRESSES[1]).record
    replies = b"$0\r\n\r\n$608\r\n12345678" + bytes(whole) + b"\r\n-WRONGTYPE no\r\n"
    with redis_peer(replies) as peer:
        tier = tier_over(peer.port)
        reads = [read_of(address) for address in ADDRESSES]
        absent, found, damaged = tier.read(reads)
        assert (absent, found) == (Absent(), Found())
        assert reads[1].into == whole
        assert isinstance(damaged, Damaged)
        tier.close()


def test_nothing_is_asked_before_there_is_a_question() -> None:
    with redis_peer(b"") as peer:
        tier = tier_over(peer.port)
        assert [list(tier.find([])), list(tier.read([])), list(tier.write([])), list(tier.delete([]))] == [[]] * 4
        assert list(tier.keep([], pinned=True, expires_unix_s=None)) == []
        assert (tier.name, tier.statistics().records) == ("pool", None)
        tier.close()
        assert peer.connections == 0
