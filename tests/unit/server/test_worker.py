import asyncio
import threading

import pytest

from kvist.server.worker import Worker


def test_work_runs_on_one_thread_and_not_on_the_loops() -> None:
    async def main() -> list[int]:
        worker = Worker()
        idents = await asyncio.gather(*(worker.run(threading.get_ident) for _ in range(20)))
        worker.close()
        return idents

    idents = asyncio.run(main())
    assert len(set(idents)) == 1
    assert threading.get_ident() not in idents


def test_the_loop_goes_on_while_work_waits() -> None:
    async def main() -> str:
        worker = Worker()
        gate = threading.Event()
        work = asyncio.create_task(worker.run(lambda: gate.wait(20)))
        await asyncio.sleep(0)
        gate.set()
        assert await work
        worker.close()
        return "went on"

    assert asyncio.run(main()) == "went on"


def test_an_error_comes_back_to_who_asked() -> None:
    async def main() -> None:
        worker = Worker()
        try:
            await worker.run(lambda: 1 // 0)
        finally:
            worker.close()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())


def test_a_closed_worker_takes_nothing() -> None:
    worker = Worker()
    worker.close()
    with pytest.raises(RuntimeError):
        asyncio.run(worker.run(lambda: None))
