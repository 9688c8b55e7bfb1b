"""The tier over real servers that die, hang, fill up, and hold what nobody of us wrote."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.tiers import BLUE, FUTURE_UNIX_S, RED, read_of, write_of
from kvist.app.clock import SystemClock
from kvist.base.errors import TierError, TierFullError, TierTimeoutError, TierUnavailableError
from kvist.blocks.keys import TenantTag
from kvist.tiers.ports import Absent, Address, Damaged, Found, NotStored, Stored, Write
from kvist.tiers.redis import RedisTier
from kvist.tiers.redis_keys import RedisKeys
from kvist.tiers.redis_settings import RedisServer, RedisSettings
from real.redis import RedisProcess, free_port
from real.redis_use import SOON_S, address_of, addresses_of, expect_failure, expect_works

MIB = 2**20


def name_of(address: Address) -> str:
    """The key under which a record lies."""
    return RedisKeys("kvist").encode([address])[0].decode()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    """A server of this test alone."""
    with RedisProcess(tmp_path) as process:
        yield process


class TestDeath:
    def test_a_server_that_is_not_there_is_unavailable(self) -> None:
        settings = RedisSettings(server=RedisServer(port=free_port()))
        expect_failure(RedisTier("pool", settings, SystemClock()), TierUnavailableError)
        elsewhere = replace(settings, server=RedisServer(host="no-such-host.invalid"))
        expect_failure(RedisTier("pool", elsewhere, SystemClock()), TierUnavailableError)
        local = replace(settings, server=RedisServer(socket_path="/no/such.sock"))
        expect_failure(RedisTier("pool", local, SystemClock()), TierUnavailableError)

    def test_a_server_that_was_killed_is_used_again_once_it_is_back(self, server: RedisProcess) -> None:
        tier = server.tier()
        for number in range(3):
            expect_works(tier, number)
            server.stop()
            expect_failure(tier, TierUnavailableError)
            server.start()
            assert list(tier.find([address_of(number)])) == [False]
        expect_works(tier)
        tier.close()

    def test_a_restart_that_nobody_saw_costs_no_call(self, server: RedisProcess) -> None:
        tier = server.tier()
        expect_works(tier)
        server.stop()
        server.start()
        expect_works(tier)
        assert server.ask("CLIENT", "KILL", "TYPE", "normal") == 1
        expect_works(tier)
        tier.close()

    def test_a_server_killed_in_the_middle_leaves_whole_records_or_none(self, server: RedisProcess) -> None:
        tier = server.tier()
        writes = [write_of(address, 2 * MIB) for address in addresses_of(24)]
        rounds = 0

        def use() -> TierError:
            nonlocal rounds
            while True:
                reads = [read_of(each.address, 2 * MIB) for each in writes]
                try:
                    tier.write(writes)
                    outcomes = tier.read(reads)
                except TierError as error:
                    return error
                assert all(
                    outcome == Found() and read.into == write.record
                    for outcome, read, write in zip(outcomes, reads, writes, strict=True)
                )
                rounds += 1
                begun.set()

        begun = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            using = threads.submit(use)
            assert begun.wait(60)
            server.stop()
            assert isinstance(using.result(60), TierUnavailableError)
        assert rounds
        tier.close()

    def test_a_server_that_hangs_times_out_and_is_used_again_when_it_goes_on(self, server: RedisProcess) -> None:
        tier = server.tier(timeout_s=SOON_S)
        expect_works(tier)
        server.pause()
        try:
            with pytest.raises(TierTimeoutError, match="pool: Redis at"):
                tier.find([address_of(0)])
            with pytest.raises(TierTimeoutError):
                tier.write([write_of(address, MIB) for address in addresses_of(8)])
        finally:
            server.resume()
        expect_works(tier, 100)  # of the others, what was sent may still arrive
        tier.close()

    def test_who_waits_for_a_server_that_hangs_is_woken_by_close(self, server: RedisProcess) -> None:
        tier = server.tier(timeout_s=500.0, connections_max=1)
        expect_works(tier)
        server.pause()
        try:
            with ThreadPoolExecutor(2) as threads:
                waiting = [threads.submit(tier.find, [address_of(0)]) for _ in range(2)]
                tier.close()
                assert all(isinstance(each.exception(timeout=60), TierUnavailableError) for each in waiting)
        finally:
            server.resume()


class TestConnections:
    def test_more_threads_than_connections_take_turns(self, server: RedisProcess) -> None:
        tier = server.tier(connections_max=2)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: [expect_works(tier, 10 * number + i) for i in range(10)], range(8)))
        assert int(str(server.ask("INFO", "stats")["total_connections_received"])) <= 4
        tier.close()

    def test_with_all_connections_in_use_a_call_waits_no_longer_than_a_time_out(self, server: RedisProcess) -> None:
        tier = server.tier(timeout_s=SOON_S, connections_max=1)
        server.pause()
        try:
            with ThreadPoolExecutor(3) as threads:
                waiting = [threads.submit(tier.find, [address_of(0)]) for _ in range(3)]
                assert all(isinstance(each.exception(timeout=60), TierTimeoutError) for each in waiting)
        finally:
            server.resume()
        expect_works(tier)
        tier.close()

    def test_a_unix_socket(self, tmp_path: Path) -> None:
        path = tmp_path / "redis.sock"
        with RedisProcess(tmp_path, "--unixsocket", str(path), port=0):
            server = RedisServer(socket_path=str(path), database=3)
            tier = RedisTier("pool", RedisSettings(server=server), SystemClock())
            expect_works(tier)
            tier.close()

    def test_databases_and_prefixes_are_apart(self, server: RedisProcess) -> None:
        settings = server.settings()
        other = replace(settings, server=RedisServer(port=server.port, database=2))
        third = replace(settings, prefix="kvist-2")
        tiers = [RedisTier("pool", each, SystemClock()) for each in (settings, other, third)]
        for number, tier in enumerate(tiers):
            expect_works(tier, number)
        for number, tier in enumerate(tiers):
            assert [entry.address for entry in tier.entries()] == [address_of(number)]
            tier.close()
        wrong = replace(settings, server=RedisServer(port=server.port, database=1_000))
        expect_failure(RedisTier("pool", wrong, SystemClock()), TierUnavailableError, "DB index")


class TestRoom:
    def test_a_full_server_that_evicts_nothing_says_so_and_goes_on_after_deletes(self, tmp_path: Path) -> None:
        with RedisProcess(tmp_path, "--maxmemory", "16mb", "--maxmemory-policy", "noeviction") as server:
            tier = server.tier()
            addresses = addresses_of(24)
            with pytest.raises(TierFullError, match="maxmemory") as caught:
                tier.write([write_of(address, MIB) for address in addresses])
            assert caught.value.tier == "pool"
            there = [address for address, found in zip(addresses, tier.find(addresses), strict=True) if found]
            assert 0 < len(there) < 24
            assert list(tier.read([read_of(each, MIB) for each in there])) == [Found()] * len(there)
            with pytest.raises(TierFullError):
                tier.write([write_of(address_of(number), MIB) for number in (100, 101)])
            assert list(tier.delete(addresses)).count(True) == len(there)
            expect_works(tier)
            tier.close()

    def test_a_server_that_evicts_keeps_pins_under_its_volatile_policies(self, tmp_path: Path) -> None:
        with RedisProcess(tmp_path, "--maxmemory", "16mb", "--maxmemory-policy", "volatile-lru") as server:
            tier = server.tier()
            pinned = addresses_of(3)
            assert list(tier.write([write_of(address, MIB) for address in pinned])) == [Stored()] * 3
            assert list(tier.keep(pinned, pinned=True, expires_unix_s=None)) == [True] * 3
            for number in range(100, 160):
                assert list(tier.write([write_of(address_of(number), MIB)])) == [Stored()]
            assert list(tier.find(pinned)) == [True] * 3
            left = list(tier.entries())
            assert len(left) < 20
            assert {entry.address for entry in left if entry.pinned} == set(pinned)
            tier.close()

    def test_a_record_longer_than_any_value_may_be_is_not_stored(self, server: RedisProcess) -> None:
        tier = server.tier()
        untouched = memoryview(bytearray(512 * MIB))  # zeros that nobody writes take no memory
        writes = [write_of(address_of(0)), Write(address=address_of(1), record=untouched, created_unix_s=0.0)]
        stored, refused = tier.write(writes)
        assert stored == Stored()
        assert isinstance(refused, NotStored)
        assert "536870912" in refused.reason
        assert list(tier.find(addresses_of(2))) == [True, False]
        tier.close()


class TestStrangers:
    def test_values_that_are_no_records_are_damage_and_harm_no_other(self, server: RedisProcess) -> None:
        tier = server.tier()
        addresses = addresses_of(12)
        tier.write([write_of(address) for address in addresses])
        names = [name_of(address) for address in addresses]
        for name in names[1::2]:
            server.ask("DEL", name)
        server.ask("RPUSH", names[1], "a", "b")
        server.ask("SET", names[3], "x")
        server.ask("SETRANGE", names[5], 100 * MIB, "x")
        server.ask("HSET", names[7], "a", "b")
        server.ask("SET", names[9], "x" * (8 + 601))
        server.ask("SET", names[11], "x" * (8 + 599))
        reads = [read_of(address) for address in addresses]
        outcomes = tier.read(reads)
        assert list(outcomes[::2]) == [Found()] * 6
        assert all(read.into == write_of(read.address).record for read in reads[::2])
        reasons = [outcome.reason for outcome in outcomes[1::2] if isinstance(outcome, Damaged)]
        assert reasons == [
            "a value of another type is there",
            "0 bytes are there, not 600",
            "more than 600 bytes are there, not 600",
            "a value of another type is there",
            "more than 600 bytes are there, not 600",
            "599 bytes are there, not 600",
        ]
        listed = {entry.address: entry.record_bytes for entry in tier.entries()}
        assert [listed[address] for address in addresses[::2]] == [600] * 6
        assert addresses[1] not in listed
        assert addresses[3] not in listed
        assert (listed[addresses[5]], listed[addresses[9]], listed[addresses[11]]) == (100 * MIB - 7, 601, 599)
        assert list(tier.delete(addresses)) == [True] * 12
        tier.close()

    def test_keys_that_are_none_of_ours_are_not_listed_nor_touched(self, server: RedisProcess) -> None:
        tier = server.tier()
        tier.write([write_of(address_of(0)), write_of(address_of(0, RED))])
        mine = name_of(address_of(0))
        strangers = [
            "kvist",
            "kvist:",
            f"{mine}0",
            f"{mine}\n",
            mine.upper(),
            f"x{mine}",
            f"kvist:{BLUE.hex()}:*",
            "a" * 10_000,
        ]
        strangers += [f"kvist:{BLUE.hex()}:{'y' * 100_000}", mine.replace(":prefix:", ":state:")]
        for name in strangers:
            server.ask("SET", name, "x" * 600)
        assert [entry.address for entry in tier.entries(BLUE)] == [address_of(0)]
        assert {entry.address for entry in tier.entries()} == {address_of(0), address_of(0, RED)}
        for tenant in (TenantTag(b"*" * 16), TenantTag(b"[a-z]".ljust(16, b"?")), TenantTag(bytes(16))):
            assert list(tier.entries(tenant)) == []
        tier.delete([entry.address for entry in tier.entries()])
        assert server.ask("EXISTS", *strangers) == len(strangers)
        tier.close()

    def test_keys_too_long_to_list_are_an_error_and_not_memory(self, server: RedisProcess) -> None:
        tier = server.tier()
        for number in range(3):
            server.ask("SET", f"kvist:{number}{'y' * (8 * MIB)}", "")
        with pytest.raises(TierUnavailableError, match="longer than anything asked for"):
            list(tier.entries())
        expect_works(tier)
        tier.close()

    def test_facts_are_those_of_the_write(self, server: RedisProcess) -> None:
        tier = server.tier()
        write = replace(write_of(address_of(0), expires=FUTURE_UNIX_S), created_unix_s=1_234_567_890.123456)
        tier.write([write])
        (entry,) = tier.entries()
        assert (entry.created_unix_s, entry.expires_unix_s, entry.pinned) == (
            1_234_567_890.123456,
            FUTURE_UNIX_S,
            False,
        )
        assert server.ask("PEXPIRETIME", name_of(address_of(0))) == FUTURE_UNIX_S * 1000
        tier.keep([write.address], pinned=True, expires_unix_s=FUTURE_UNIX_S + 1)
        (entry,) = tier.entries()
        assert (entry.expires_unix_s, entry.pinned) == (FUTURE_UNIX_S + 1, False)
        tier.keep([write.address], pinned=True, expires_unix_s=None)
        (entry,) = tier.entries()
        assert (entry.expires_unix_s, entry.pinned) == (None, True)
        tier.close()

    def test_thousands_of_records_are_listed_once_each_while_others_come_and_go(self, server: RedisProcess) -> None:
        tier = server.tier()
        kept = addresses_of(2_000)
        tier.write([write_of(address, 512) for address in kept])
        seen = []
        for index, entry in enumerate(tier.entries()):
            if entry.address in kept[:1] or index % 100 == 0:
                number = 10_000 + index * 50
                tier.write([write_of(address_of(number + more), 512) for more in range(50)])
                tier.delete([address_of(number)])
            seen.append(entry.address)
        assert len(seen) == len(set(seen))
        assert set(kept) <= set(seen)
        assert list(tier.read([read_of(kept[0], 512), read_of(address_of(9_999), 512)])) == [Found(), Absent()]
        tier.close()
