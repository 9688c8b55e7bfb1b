"""The tier over real servers that ask who is there, and over wires that others could read."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.tiers import BLUE, RED, read_of, write_of
from kvist.app.clock import SystemClock
from kvist.base.errors import TierError, TierUnavailableError
from kvist.tiers.ports import Found, Stored
from kvist.tiers.redis import RedisTier
from kvist.tiers.redis_settings import RedisServer, RedisSettings
from real.redis import Certificates, RedisProcess, free_port
from real.redis_use import HUSH, SOON_S, address_of, expect_failure, expect_works, verbs

MIB = 2**20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    """A server of this test alone."""
    with RedisProcess(tmp_path) as process:
        yield process


class TestTls:
    @pytest.fixture
    def made(self, tmp_path: Path) -> Certificates:
        return Certificates(tmp_path)

    def test_certificates_on_both_sides(self, tmp_path: Path, made: Certificates) -> None:
        port = free_port()
        with RedisProcess(tmp_path, *made.options(port), port=0):
            both = RedisSettings(
                server=RedisServer(port=port, tls=True),
                ca_file=made.authority[0],
                certificate_file=made.client[0],
                key_file=made.client[1],
                timeout_s=SOON_S * 10,
            )
            tier = RedisTier("pool", both, SystemClock())
            expect_works(tier)
            write = write_of(address_of(1), 4 * MIB)
            assert list(tier.write([write])) == [Stored()]
            read = read_of(write.address, 4 * MIB)
            assert list(tier.read([read])) == [Found()]
            assert read.into == write.record
            assert len(list(tier.entries())) == 2
            tier.close()
            stranger = replace(both, certificate_file=None, key_file=None)
            unknown = replace(both, ca_file=None)
            misnamed = replace(both, server=RedisServer(host="localhost", port=port, tls=True))
            for wrong, match in ((stranger, "Redis at"), (unknown, "certificate"), (misnamed, "certificate")):
                expect_failure(RedisTier("pool", wrong, SystemClock()), TierUnavailableError, match)
            plain = RedisSettings(server=RedisServer(port=port), timeout_s=SOON_S * 10)
            expect_failure(RedisTier("pool", plain, SystemClock()), TierUnavailableError)

    def test_a_server_without_tls_is_not_talked_to_in_the_open(self, made: Certificates, server: RedisProcess) -> None:
        encrypted = RedisServer(port=server.port, tls=True, password=HUSH)
        settings = RedisSettings(server=encrypted, ca_file=made.authority[0], timeout_s=SOON_S / 3)
        expect_failure(RedisTier("pool", settings, SystemClock()), TierError)

    def test_who_waits_is_woken_by_close_over_tls_as_well(self, tmp_path: Path, made: Certificates) -> None:
        port = free_port()
        with RedisProcess(tmp_path, *made.options(port), "--tls-auth-clients", "no", port=0) as server:
            settings = RedisSettings(
                server=RedisServer(port=port, tls=True), ca_file=made.authority[0], timeout_s=500.0
            )
            tier = RedisTier("pool", settings, SystemClock())
            expect_works(tier)
            server.pause()
            try:
                with ThreadPoolExecutor(1) as threads:
                    waiting = threads.submit(tier.find, [address_of(0)])
                    tier.close()
                    assert isinstance(waiting.exception(timeout=60), TierUnavailableError)
            finally:
                server.resume()


class TestUsers:
    RIGHTS = "+exists +getrange +set +unlink +persist +pexpireat +scan +strlen +pexpiretime"

    def tier(self, port: int, username: str | None, password: str | None) -> RedisTier:
        server = RedisServer(port=port, username=username, password=password)
        return RedisTier("pool", RedisSettings(server=server), SystemClock())

    def test_a_user_needs_the_rights_that_are_documented_and_no_more(self, tmp_path: Path) -> None:
        users = tmp_path / "users.acl"
        blue = f"kvist:{BLUE.hex()}:*"
        users.write_text(
            "user default off\n"
            f"user kvist on >{HUSH} ~kvist:* {self.RIGHTS}\n"
            f"user blue on >{HUSH} ~{blue} {self.RIGHTS}\n"
            f"user reader on >{HUSH} ~kvist:* +exists +getrange\n"
        )
        with RedisProcess(tmp_path, "--aclfile", str(users)) as server:
            tier = self.tier(server.port, "kvist", HUSH)
            for verb in verbs(tier):
                assert verb() is not None
            expect_works(tier)
            assert list(tier.write([write_of(address_of(0, RED))])) == [Stored()]
            tier.close()
            for username, password, match in (
                (None, None, "Authentication required"),
                ("kvist", "wrong", "username-password"),
                ("nobody", HUSH, "username-password"),
                (None, HUSH, "Redis at"),
            ):
                expect_failure(self.tier(server.port, username, password), TierUnavailableError, match)
            own = self.tier(server.port, "blue", HUSH)
            expect_works(own)
            with pytest.raises(TierUnavailableError, match="permissions"):
                own.find([address_of(0, RED)])
            assert len(list(own.entries(BLUE))) == 1
            reader = self.tier(server.port, "reader", HUSH)
            assert list(reader.find([address_of(0)])) == [True]
            with pytest.raises(TierUnavailableError, match="permissions"):
                reader.write([write_of(address_of(0))])
            assert list(reader.read([read_of(address_of(0))])) == [Found()]
            own.close()
            reader.close()

    def test_a_password_alone(self, tmp_path: Path) -> None:
        with RedisProcess(tmp_path, "--requirepass", HUSH) as server:
            tier = self.tier(server.port, None, HUSH)
            expect_works(tier)
            tier.close()
            expect_failure(self.tier(server.port, None, HUSH[:-1]), TierUnavailableError)
