from kvist.app.clock import SystemClock


def test_the_clock_counts_seconds_and_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.now_s() for _ in range(1000)]
    assert readings == sorted(readings)
    assert isinstance(readings[0], float)


def test_the_clock_moves_while_work_is_done() -> None:
    clock = SystemClock()
    began_s = clock.now_s()
    assert sum(range(100_000)) > 0
    assert 0 < clock.now_s() - began_s < 60
