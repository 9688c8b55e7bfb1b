import asyncio
import threading

from kvist.base.ids import RequestId
from kvist.engine.messages import Event, Failed
from kvist.server.handover import Handover


def event(number: int) -> Event:
    return Failed(request_id=RequestId("r"), message=str(number))


def test_events_of_many_threads_arrive_on_the_loop_in_each_threads_order() -> None:
    async def main() -> tuple[list[tuple[int, int]], set[int]]:
        loop = asyncio.get_running_loop()
        handover = Handover(loop)
        got: list[tuple[int, int]] = []
        threads_seen: set[int] = set()
        complete = asyncio.Event()

        def taker(source: int):
            def take(each: Event) -> None:
                assert isinstance(each, Failed)
                got.append((source, int(each.message)))
                threads_seen.add(threading.get_ident())
                if len(got) == 4000:
                    complete.set()

            return take

        def send(source: int) -> None:
            deliver = handover.deliver_to(taker(source))
            for number in range(1000):
                deliver(event(number))

        threads = [threading.Thread(target=send, args=(source,)) for source in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(complete.wait(), 20)
        for thread in threads:
            thread.join()
        return got, threads_seen

    got, threads_seen = asyncio.run(main())
    for source in range(4):
        assert [number for each, number in got if each == source] == list(range(1000))
    assert threads_seen == {threading.get_ident()}


def test_a_burst_wakes_the_loop_once() -> None:
    class CountingLoop:
        def __init__(self) -> None:
            self.woken = []

        def call_soon_threadsafe(self, callback) -> None:
            self.woken.append(callback)

    loop = CountingLoop()
    got: list[Event] = []
    deliver = Handover(loop).deliver_to(got.append)  # type: ignore[arg-type]  # only what is called matters
    for number in range(10):
        deliver(event(number))
    assert len(loop.woken) == 1
    loop.woken[0]()
    assert got == [event(number) for number in range(10)]
    deliver(event(10))
    assert len(loop.woken) == 2


def test_an_event_after_the_loops_end_is_dropped() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    got: list[Event] = []
    Handover(loop).deliver_to(got.append)(event(0))
    assert got == []
