import asyncio

from fakes.serving import MODEL, ManualClock, service_of
from fakes.tokenizer import ByteTokenizer


def test_ids_never_repeat_even_if_the_draws_do(start) -> None:
    service = service_of(start(), ByteTokenizer())
    assert len({service.new_id() for _ in range(1000)}) == 1000


def test_the_time_of_day_follows_the_monotonic_clock(start) -> None:
    service = service_of(start(), ByteTokenizer())
    clock = service.clock
    assert isinstance(clock, ManualClock)
    clock.time_s += 90.7
    assert service.unix_s() == MODEL.created_s + 90


def test_one_handover_per_loop(start) -> None:
    service = service_of(start(), ByteTokenizer())

    async def two():
        return service.handover(), service.handover()

    first, again = asyncio.run(two())
    other, _ = asyncio.run(two())
    assert first is again
    assert first is not other
