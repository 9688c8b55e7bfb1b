"""What is said of a pool, of the real one wherever it can be had."""

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.clock import HandClock
from kvist.app.clock import SystemCalendar, SystemClock
from kvist.app.doctor_findings import Finding
from kvist.app.doctor_pool import Said, judged, pool_findings
from kvist.app.tier_specs import PoolSpec
from kvist.tiers.redis_settings import RedisServer, RedisSettings
from real.redis import RedisProcess, free_port, shared_server

BOUNDED = ("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")


def looked_at(url: str, **changes: object) -> list[Finding]:
    spec = PoolSpec(name="pool", url=url, **changes)
    return list(pool_findings(spec, SystemClock(), SystemCalendar()))


def local(server: RedisProcess) -> str:
    return f"redis://127.0.0.1:{server.port}"


def of(found: list[Finding], status: str) -> list[str]:
    return [each.text for each in found if each.status == status]


def test_a_pool_that_is_bounded_and_evicts_is_fine_and_is_left_as_it_was(tmp_path: Path) -> None:
    with RedisProcess(tmp_path, *BOUNDED) as server:
        found = looked_at(local(server))
        assert [each.status for each in found] == ["ok", "ok"]
        assert "64.0 MiB" in found[1].text
        assert server.ask("DBSIZE") == 0
        assert all(each.check == "tier pool" for each in found)


def test_one_without_a_bound_is_a_problem() -> None:
    (text,) = of(looked_at(local(shared_server())), "problem")
    assert "maxmemory" in text


def test_one_that_evicts_nothing_is_a_problem_and_a_full_one_another(tmp_path: Path) -> None:
    with RedisProcess(tmp_path, "--maxmemory", "64mb", "--maxmemory-policy", "noeviction") as server:
        (text,) = of(looked_at(local(server)), "problem")
        assert "noeviction" in text
        server.ask("CONFIG", "SET", "maxmemory", "1")
        refused, policy = of(looked_at(local(server)), "problem")
        assert "did not take a record" in refused
        assert "noeviction" in policy


def test_a_user_with_the_least_rights_may_use_it_and_is_told_what_was_not_seen(tmp_path: Path) -> None:
    with RedisProcess(tmp_path, *BOUNDED) as server:
        rights = "~kvist:* +exists +getrange +set +unlink +persist +pexpireat +scan +strlen +pexpiretime"
        server.ask("ACL", "SETUSER", "tight", "on", ">secret", *rights.split())
        found = looked_at(f"redis://tight:secret@127.0.0.1:{server.port}")
        assert [each.status for each in found] == ["ok", "note"]
        assert "INFO" in found[1].text
        server.ask("ACL", "SETUSER", "tight", "-set")
        assert len(of(looked_at(f"redis://tight:secret@127.0.0.1:{server.port}"), "problem")) == 1
        (wrong,) = of(looked_at(f"redis://tight:wrong-password@127.0.0.1:{server.port}"), "problem")
        assert "wrong-password" not in wrong


def test_one_that_does_not_answer_is_a_problem(tmp_path: Path) -> None:
    (found,) = looked_at(f"redis://127.0.0.1:{free_port()}")
    assert (found.status, bool(found.remedy)) == ("problem", True)
    with RedisProcess(tmp_path) as server:
        server.pause()
        (hung,) = looked_at(local(server), timeout_s=0.05)
        assert hung.status == "problem"
        server.resume()


@pytest.mark.parametrize("url", ["redis://:99999", "redis://a b", "unix://x", "redis://127.0.0.1:1/x", "redis://"])
def test_a_url_that_is_none_is_a_problem(url: str) -> None:
    (found,) = looked_at(url)
    assert found.status == "problem"


def test_a_password_file_that_is_missing_is_a_problem(tmp_path: Path) -> None:
    (found,) = looked_at("redis://127.0.0.1", password_file=str(tmp_path / "none"))
    assert found.status == "problem"


# ---- what a server may say that the real one here does not

SETTINGS = RedisSettings(server=RedisServer())
FINE = Said(
    facts={"redis_version": "7.0.15", "maxmemory": "1073741824", "maxmemory_policy": "volatile-lru"},
    unix_s=1000.0,
    round_trip_s=0.0004,
    probe="",
)


def judged_of(now_unix_s: float = 1000.0, **changes: object) -> list[Finding]:
    return list(judged("tier pool", SETTINGS, replace(FINE, **changes), now_unix_s))


def test_a_clock_that_is_wrong_is_a_note() -> None:
    assert of(judged_of(), "note") == []
    assert "100 s ahead" in of(judged_of(900.0), "note")[0]
    assert "100 s behind" in of(judged_of(1100.0), "note")[0]
    assert of(judged_of(1e9, unix_s=None), "note") == []


@pytest.mark.parametrize("version", ["6.2.14", "", "x.y", "7", "\u0667.0", "9" * 30])
def test_an_old_release_is_a_problem(version: str) -> None:
    assert len(of(judged_of(facts=FINE.facts | {"redis_version": version}), "problem")) == 1
    valkey = FINE.facts | {"redis_version": version, "valkey_version": "8.0"}
    assert of(judged_of(facts=valkey), "problem") == []


def test_a_cluster_is_a_problem() -> None:
    assert "cluster" in of(judged_of(facts=FINE.facts | {"cluster_enabled": "1"}), "problem")[0]


@pytest.mark.parametrize("limit", ["", "-1", "x", "\u0661", "1" * 50])
def test_a_limit_that_is_no_number_is_passed_over(limit: str) -> None:
    assert of(judged_of(facts=FINE.facts | {"maxmemory": limit}), "problem") == []


def test_a_pool_beyond_this_host_wants_a_password_and_tls() -> None:
    clock = HandClock()
    spec = PoolSpec(name="pool", url="redis://user:secret@192.0.2.1:6379", timeout_s=0.01)
    first = next(pool_findings(spec, clock, SystemCalendar()))
    assert (first.status, "TLS" in first.text, "password" in first.text) == ("note", True, False)
    bare = next(pool_findings(spec.model_copy(update={"url": "redis://192.0.2.1"}), clock, SystemCalendar()))
    assert "a password and TLS" in bare.text
