import asyncio

import pytest

from kvist.server.errors import ApiError
from kvist.server.lifecycle import Lifecycle


def test_a_drain_takes_nothing_new_and_lets_go_on_what_runs() -> None:
    lifecycle = Lifecycle()
    with lifecycle.admitted(lambda: None):
        lifecycle.drain()
        assert not lifecycle.is_accepting
        assert lifecycle.running == 1
        with pytest.raises(ApiError) as caught, lifecycle.admitted(lambda: None):
            raise AssertionError("was admitted")
        assert caught.value.family.status == 503
        assert lifecycle.running == 1
    assert lifecycle.running == 0


def test_accepting_is_the_first_state() -> None:
    lifecycle = Lifecycle()
    assert lifecycle.is_accepting
    lifecycle.check_accepting()
    lifecycle.drain()
    with pytest.raises(ApiError):
        lifecycle.check_accepting()


def test_idle_is_when_the_last_one_leaves() -> None:
    async def main() -> list[str]:
        lifecycle = Lifecycle()
        happened: list[str] = []

        async def wait() -> None:
            await lifecycle.wait_idle()
            happened.append("idle")

        await asyncio.wait_for(lifecycle.wait_idle(), 20)
        with lifecycle.admitted(lambda: None):
            with lifecycle.admitted(lambda: None):
                waiting = asyncio.create_task(wait())
                await asyncio.sleep(0)
            happened.append("one left")
            await asyncio.sleep(0)
        happened.append("both left")
        await asyncio.wait_for(waiting, 20)
        return happened

    assert asyncio.run(main()) == ["one left", "both left", "idle"]


def test_all_that_run_are_aborted_and_only_those() -> None:
    lifecycle = Lifecycle()
    aborted: list[str] = []
    with lifecycle.admitted(lambda: aborted.append("first")):
        with lifecycle.admitted(lambda: aborted.append("second")):
            pass
        lifecycle.abort_all()
    assert aborted == ["first"]


def test_who_fails_leaves_too() -> None:
    lifecycle = Lifecycle()
    with pytest.raises(ZeroDivisionError), lifecycle.admitted(lambda: None):
        raise ZeroDivisionError
    assert lifecycle.running == 0
