"""What one vLLM has left on a disk and in a pool: the next one finds it if it would compute the same, and nobody else.

Also what happens when it is damaged, and when it does not come in time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from under_vllm.conftest import Tokens
from under_vllm.place import Place, late_read
from under_vllm.server import Answer, Prompt, VllmServer, VllmSettings
from under_vllm.talk import check_same, forget, settled

NAME = "smollm2"


@dataclass(frozen=True)
class Left:
    """What the first life said and left: answers that were computed, and answers after a local hit."""

    prompts: list[Prompt]
    cold: list[Answer]
    warm: list[Answer]


@pytest.fixture(scope="module")
def left(model: Callable[[str], Path], tokens: Tokens, place: Place) -> Left:
    prompts: list[Prompt] = [tokens(NAME, which, 700 + 64 * which) for which in range(3)]
    with VllmServer(VllmSettings(model=model(NAME), kvist=place.kvist("dram", "disk", "pool"))) as server:
        cold = [server.ask(prompt) for prompt in prompts]
        warm = [server.ask(prompt) for prompt in prompts]
        settled(server)
    assert all(answer.cached_tokens > 600 for answer in warm)
    return Left(prompts, cold, warm)


def server_with(model: Path, kvist: dict[str, object], dtype: str = "bfloat16") -> VllmServer:
    return VllmServer(VllmSettings(model=model, kvist=kvist, dtype=dtype))


class TestOnDisk:
    """One server, which is gone before others use its directory."""

    @pytest.fixture(scope="class")
    def on_disk(self, left: Left, model: Callable[[str], Path], place: Place) -> Iterator[VllmServer]:
        with server_with(model(NAME), place.kvist("disk")) as server:
            yield server

    def test_a_disk_starts_the_next_life_warm(self, left: Left, on_disk: VllmServer) -> None:
        check_same([on_disk.ask(prompt) for prompt in left.prompts], left.warm)
        metrics = settled(on_disk)
        assert metrics['vllm:prompt_tokens_cached_by_source_total{source="disk"}'] == sum(
            answer.cached_tokens for answer in left.warm
        )

    def test_a_salt_is_a_tenant_of_its_own(self, left: Left, on_disk: VllmServer) -> None:
        on_disk.reset()
        for salt in ("one", "another"):
            check_same([on_disk.ask(prompt, cache_salt=salt) for prompt in left.prompts[:2]], left.cold[:2])
            forget(on_disk)
        check_same([on_disk.ask(prompt, cache_salt="one") for prompt in left.prompts[:2]], left.warm[:2])

    def test_damage_on_the_disk_is_computed_instead(self, left: Left, on_disk: VllmServer, place: Place) -> None:
        forget(on_disk)
        before = settled(on_disk)
        for segment in place.disk().glob("segment-*"):
            content = bytearray(segment.read_bytes())
            for at in range(2048, len(content), 4096):
                content[at] ^= 0x10
            with segment.open("r+b") as file:
                file.write(content)
        answers = [on_disk.ask(prompt) for prompt in left.prompts]
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in left.cold]
        after = settled(on_disk)
        quarantined = 'kvist_tier_blocks_total{event="quarantined",tier="disk"}'
        assert after.get(quarantined, 0.0) > before.get(quarantined, 0.0)
        assert after['kvist_loads_total{outcome="failed"}'] > before.get('kvist_loads_total{outcome="failed"}', 0.0)
        assert after["kvist_connector_detached"] == 0
        # What was computed instead has replaced it.
        on_disk.reset()
        check_same([on_disk.ask(prompt) for prompt in left.prompts], left.warm)


def test_a_pool_starts_another_host_warm(left: Left, model: Callable[[str], Path], place: Place) -> None:
    with server_with(model(NAME), place.kvist("pool")) as server:
        check_same([server.ask(prompt) for prompt in left.prompts], left.warm)
        metrics = settled(server)
    assert metrics['kvist_tokens_begun_total{source="pool"}'] == sum(answer.cached_tokens for answer in left.warm)


def test_what_does_not_come_in_time_is_computed(left: Left, model: Callable[[str], Path], place: Place) -> None:
    with server_with(model(NAME), place.kvist("disk", faults=late_read(20.0))) as server:
        answer = server.ask(left.prompts[0], cache_salt="in time")
        assert answer.tokens == left.cold[0].tokens
        forget(server)
        late = server.ask(left.prompts[0], cache_salt="in time")
        metrics = settled(server)
        assert metrics['kvist_loads_total{outcome="late"}'] == 1
        assert late.tokens == left.cold[0].tokens
        server.reset()
        check_same([server.ask(left.prompts[0], cache_salt="in time")], [left.warm[0]])


@pytest.mark.parametrize(("name", "dtype"), [(NAME, "float32"), ("gemma3-270m", "bfloat16")])
def test_another_model_or_dtype_finds_nothing(
    left: Left, model: Callable[[str], Path], place: Place, name: str, dtype: str
) -> None:
    kept = place.redis.ask("dbsize")
    with server_with(model(name), place.kvist("pool"), dtype) as server:
        assert [server.ask(prompt).cached_tokens for prompt in left.prompts] == [0, 0, 0]
        forget(server)
        assert all(server.ask(prompt).cached_tokens > 0 for prompt in left.prompts), "it does not use the pool"
    assert place.redis.ask("dbsize") > kept
