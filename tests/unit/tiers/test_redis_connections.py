"""Connections are opened when needed, kept when whole, dropped when not, and never more than allowed."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis.exceptions import ResponseError

from fakes.redis_peer import redis_peer
from kvist.app.clock import SystemClock
from kvist.base.errors import TierTimeoutError, TierUnavailableError
from kvist.tiers.redis_connections import RedisConnections
from kvist.tiers.redis_settings import RedisServer, RedisSettings
from kvist.tiers.redis_wire import RedisWire


def connections_to(port: int, **changes: object) -> RedisConnections:
    return RedisConnections("pool", RedisSettings(server=RedisServer(port=port), **changes), SystemClock())


def ask(connections: RedisConnections, question: bytes = b"?") -> object:
    with connections.borrow() as wire:
        wire.begin(0)
        wire.send([question])
        return wire.receive()


def test_a_connection_is_opened_once_and_used_again() -> None:
    with redis_peer(b":1\r\n", b"") as peer:
        connections = connections_to(peer.port)
        assert peer.connections == 0
        assert ask(connections) == 1
        with connections.borrow() as wire:
            assert isinstance(wire, RedisWire)
        assert peer.connections == 1
        connections.close()


def test_one_that_failed_in_use_is_dropped() -> None:
    with redis_peer(b":1\r\n") as peer:
        connections = connections_to(peer.port)
        for count, error in enumerate((ResponseError("ERR no"), OSError("lost")), 1):
            assert ask(connections) == 1
            with pytest.raises(TierUnavailableError, match="pool: "), connections.borrow():
                raise error
            assert peer.connections == count
        with pytest.raises(AssertionError), connections.borrow():
            raise AssertionError
        assert ask(connections) == 1
        connections.close()


def test_one_on_which_something_came_unasked_is_replaced() -> None:
    with redis_peer(b":1\r\n:2\r\n") as peer:
        connections = connections_to(peer.port)
        assert ask(connections) == 1
        assert ask(connections) == 1
        assert peer.connections == 2
        connections.close()


def test_a_peer_that_hangs_up_is_told_from_one_that_waits() -> None:
    with redis_peer(b":1\r\n") as peer:
        connections = connections_to(peer.port)
        assert ask(connections) == 1
    with pytest.raises(TierUnavailableError):
        ask(connections)
    connections.close()


def test_no_more_than_allowed_are_open() -> None:
    with redis_peer(b":1\r\n") as peer:
        connections = connections_to(peer.port, connections_max=2, timeout_s=0.2)
        both, free = threading.Barrier(3), threading.Event()

        def hold() -> None:
            with connections.borrow():
                both.wait()
                free.wait()

        with ThreadPoolExecutor(2) as threads:
            holding = [threads.submit(hold) for _ in range(2)]
            both.wait()
            with pytest.raises(TierTimeoutError, match="all 2 connections"):
                ask(connections)
            free.set()
            assert [each.result(60) for each in holding] == [None, None]
        assert ask(connections) == 1
        assert peer.connections == 2
        connections.close()


def test_closed_is_closed_for_everyone() -> None:
    with redis_peer(b"") as peer:
        connections = connections_to(peer.port, timeout_s=500.0)
        connections.check_open()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(ask, connections)
            connections.close()
            connections.close()
            assert isinstance(waiting.exception(60), TierUnavailableError)
        for call in (connections.check_open, lambda: ask(connections)):
            with pytest.raises(TierUnavailableError, match="closed"):
                call()
