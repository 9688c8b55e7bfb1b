"""The server beside the server: it answers on its socket, on a thread of its own, and ends with the `with`."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from fakes.operated import KEY_OF, NAMESPACE, TEXT, operator, served, some_explanation, tenant_of, told
from fakes.serving import SETTINGS
from fakes.stock import fabric_stock
from fakes.tiers import write_of
from fakes.tokenizer import ByteTokenizer
from kvist.app.administration import Reading, administration_app
from kvist.app.private_socket import VARIABLE
from kvist.base.errors import ConfigError
from kvist.base.ids import GroupId
from kvist.blocks.keys import BlockKey, HashChain, tenant_tag
from kvist.cli.cache_client import find_server
from kvist.server.administration import create_administration
from kvist.server.administration_ports import Explanation
from kvist.tiers.ports import Address


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    with TemporaryDirectory(prefix="kvist-") as folder:
        yield {VARIABLE: folder}


def post(path: Path, verb: str, body: dict[str, object]) -> httpx.Response:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=60) as client:
        return client.post(f"http://kvist/v1/cache/{verb}", json=body)


def test_a_running_fabric_is_asked_and_changed_over_the_socket(environment: dict[str, str]) -> None:
    with operator(fabric_stock) as there:
        hashes = there.store(TEXT)
        app = create_administration(there.verbs, SETTINGS)
        with served(app, 8000, environment) as path:
            answer = post(path, "copy", {"all": True, "source": "pool", "target": "dram"}).json()
            assert answer["tiers"][0]["done"] == len(hashes)
            dram, _ = post(path, "tiers", {}).json()["tiers"]
            assert dram["resident"] == len(hashes)
            assert post(path, "purge", {}).status_code == 400
        assert not path.exists()
    assert "kvist-administration" not in {thread.name for thread in threading.enumerate()}


def test_the_app_of_a_server_reads_prompts_as_the_server_does(environment: dict[str, str]) -> None:
    loads = []

    def loaded() -> ByteTokenizer:
        loads.append(ByteTokenizer())
        return loads[-1]

    reading = Reading(load_tokenizer=loaded, tokens_max=100, explain=told(some_explanation()))
    with operator(fabric_stock) as there:
        app = administration_app(there.trial.stock._fabric, b"a secret of the tests", reading, SETTINGS)
        text = "16 tokens to a block, as the fabric was told"
        chain = HashChain(KEY_OF(tenant_of("blue")), block_tokens=16).extend_to(ByteTokenizer().encode(text))
        tag = tenant_tag(KEY_OF(tenant_of("blue")))
        addresses = [Address(key=BlockKey(NAMESPACE, GroupId(0), "prefix", each), tenant=tag) for each in chain]
        there.trial.pool.write([write_of(address) for address in addresses])
        with served(app, 8000, environment) as path:
            assert post(path, "list", {"tenant": "blue"}).json()["blocks"][0]["hash"] == chain[0].hex()
            for tenant, done in (("red", 0), ("blue", 2)):
                answer = post(path, "purge", {"prompt": text, "tenant": tenant}).json()
                assert sum(row["done"] for row in answer["tiers"]) == done
            assert "101 tokens" in post(path, "explain", {"prompt": "x" * 100}).json()["error"]["message"]
            assert post(path, "explain", {"prompt": "x"}).json()["tokens"] == 2
    assert len(loads) == 1


def test_two_servers_of_one_port_on_two_addresses_are_both_asked(environment: dict[str, str]) -> None:
    with operator() as there:
        app = create_administration(there.verbs, SETTINGS)
        with served(app, 8000, environment) as path:
            with served(app, 8000, environment) as other:
                assert other != path
                assert post(other, "tiers", {}).status_code == 200
                with pytest.raises(ConfigError, match=re.escape(str(other))):
                    find_server(None, 8000, environment)
                with pytest.raises(ConfigError, match="--socket"):
                    find_server(None, None, environment)
                assert find_server(str(other), None, environment) == other
            assert find_server(None, 8000, environment) == find_server(None, None, environment) == path
            assert post(path, "tiers", {}).status_code == 200


def test_it_ends_although_a_command_still_runs(environment: dict[str, str]) -> None:
    begun, never = threading.Event(), threading.Event()

    def explain(*_: object) -> Explanation:
        begun.set()
        never.wait(60)
        return some_explanation()

    with operator(explain=explain) as there:
        app = create_administration(there.verbs, SETTINGS)
        failed: list[Exception] = []

        def ask(path: Path) -> None:
            try:
                post(path, "explain", {"prompt": TEXT})
            except httpx.HTTPError as error:
                failed.append(error)

        with served(app, 8000, environment, stop_s=1) as path:
            asking = threading.Thread(target=ask, args=(path,))
            asking.start()
            assert begun.wait(60)
        assert not path.exists()
        never.set()
        asking.join(60)
        assert not asking.is_alive()
    assert len(failed) <= 1
