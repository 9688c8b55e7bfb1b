"""Tiers that no server uses, opened for one command: nothing is lost by that, and nothing is opened that is in use."""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from subprocess import run

import pytest

from fakes.operated import KEY_OF, NAMESPACE
from fakes.tiers import BLUE, NOW_UNIX_S, key_of, record_of, write_of
from kvist.app.administration_offline import offline_tiers, offline_verbs, secret_of
from kvist.app.clock import SystemClock
from kvist.app.secret import load_secret
from kvist.app.tier_specs import DiskSpec, PoolSpec, read_tier_flag
from kvist.app.tiers import opened_tiers
from kvist.base.errors import ConfigError
from kvist.base.ids import TENANT_DEFAULT, BlockHash, GroupId
from kvist.blocks.keys import BlockKey, tenant_key, tenant_tag
from kvist.fabric.messages import TierName
from kvist.server.administration_verbs import Verbs
from kvist.server.errors import ApiError
from kvist.tiers.ports import Address, Place, Write
from kvist.tiers.regions import Regions
from real.redis import shared_server

RECORD = 4096
SIZE = "64MiB"
TESTS = Path(__file__).parents[2]


def disk_at(folder: Path, size: str = SIZE) -> DiskSpec:
    spec = read_tier_flag(f"disk={folder}:{size}")
    assert isinstance(spec, DiskSpec)
    return spec.model_copy(update={"free_min": 1})


def pool() -> PoolSpec:
    spec = read_tier_flag(f"pool=redis://127.0.0.1:{shared_server().port}")
    assert isinstance(spec, PoolSpec)
    return spec


def fill(spec: DiskSpec, numbers: Sequence[int], tenant: object = KEY_OF(TENANT_DEFAULT), served: int = RECORD) -> None:
    """Leaves records in a directory as a server would have whose model has records of `served` bytes."""
    with closing(Regions()) as regions, opened_tiers([spec], [served], regions, SystemClock()) as tiers:
        (opened,) = tiers.values()
        writes = []
        for number in numbers:
            key = BlockKey(NAMESPACE, GroupId(0), "prefix", BlockHash(bytes([number]) * 32))
            place = Place(offset=number * RECORD, length=RECORD)
            address = Address(key=key, tenant=tenant_tag(tenant), place=place)
            record = record_of(address, RECORD)
            writes.append(Write(address=address, record=record, created_unix_s=NOW_UNIX_S))
        opened.tier.write(writes)


def hashes(verbs: Verbs, tier: str) -> set[str]:
    return {block["hash"][:2] for block in verbs.do("list", {"tier": tier})["blocks"]}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return tmp_path / "secret"


def test_a_directory_shows_what_its_server_left_there(tmp_path: Path, secret: Path) -> None:
    spec = disk_at(tmp_path / "kv")
    fill(spec, range(10))
    for _ in range(2):  # and is left as it was
        with offline_verbs([spec], secret) as verbs:
            blocks = verbs.do("list", {})["blocks"]
            assert {(block["tier"], block["bytes"]) for block in blocks} == {("disk", RECORD)}
            assert len(blocks) == 10
            assert verbs.do("verify", {"all": True})["tiers"][0]["done"] == 10


def test_what_is_purged_and_pinned_stays_so(tmp_path: Path, secret: Path) -> None:
    spec = disk_at(tmp_path / "kv")
    fill(spec, range(4))
    with offline_verbs([spec], secret) as verbs:
        verbs.do("purge", {"hashes": ["01" * 32]})
        verbs.do("pin", {"hashes": ["02" * 32]})
    with offline_verbs([spec], secret) as verbs:
        blocks = verbs.do("list", {})["blocks"]
        assert {block["hash"][:2]: block["pinned"] for block in blocks} == {"00": False, "02": True, "03": False}


def test_blocks_go_from_disk_to_pool_and_back(tmp_path: Path, secret: Path) -> None:
    shared_server().ask("FLUSHALL")
    spec = disk_at(tmp_path / "kv")
    fill(spec, range(5))
    with offline_verbs([spec, pool()], secret) as verbs:
        (row,) = verbs.do("move", {"all": True, "source": "disk", "target": "pool"})["tiers"]
        assert (row["done"], row["left"]) == (5, 0)
        assert (hashes(verbs, "disk"), len(hashes(verbs, "pool"))) == (set(), 5)
    with offline_verbs([spec, pool()], secret) as verbs:
        (row,) = verbs.do("copy", {"all": True, "source": "pool", "target": "disk"})["tiers"]
        assert row["done"] == 5
        assert hashes(verbs, "disk") == hashes(verbs, "pool")
        assert {row["done"] for row in verbs.do("verify", {"all": True})["tiers"]} == {5}


def test_tenants_are_named_with_their_servers_secret(tmp_path: Path, secret: Path) -> None:
    spec = disk_at(tmp_path / "kv")
    key = tenant_key(load_secret(secret), TENANT_DEFAULT)
    fill(spec, range(3), key)
    fill(disk_at(tmp_path / "other"), range(3))
    with offline_verbs([spec], secret) as verbs:
        assert len(verbs.do("list", {"default_tenant": True})["blocks"]) == 3
        assert verbs.do("list", {"tenant": "blue"})["blocks"] == []
    with offline_verbs([spec], tmp_path / "none") as verbs, pytest.raises(ApiError, match="secret"):
        verbs.do("list", {"default_tenant": True})
    assert not (tmp_path / "none").exists(), "a secret was made up"


def test_a_server_that_was_killed_has_left_its_blocks(tmp_path: Path, secret: Path) -> None:
    program = (
        f"import os, sys\nfrom pathlib import Path\nsys.path.insert(0, {str(TESTS)!r})\n"
        "from kvist.tiers.disk import DiskTier\nfrom kvist.tiers.disk_settings import DiskSettings\n"
        "from kvist.tiers.ports import Address, Place, Write\nfrom fakes.tiers import BLUE, key_of, write_of\n"
        f"tier = DiskTier('disk', DiskSettings(directory=Path({str(tmp_path / 'kv')!r}), bytes_max=2**26, "
        "bytes_free_min=1, record_bytes_min=4096))\n"
        "places = [Place(offset=4096 * number, length=4096) for number in range(7)]\n"
        "tier.write([write_of(Address(key=key_of(at.offset), tenant=BLUE, place=at)) for at in places])\n"
        "os._exit(9)"
    )
    assert run([sys.executable, "-c", program], check=False).returncode == 9
    with offline_verbs([disk_at(tmp_path / "kv")], secret) as verbs:
        assert verbs.do("verify", {"all": True})["tiers"][0]["done"] == 7


def test_a_directory_in_use_is_refused(tmp_path: Path, secret: Path) -> None:
    spec = disk_at(tmp_path / "kv")
    fill(spec, range(3))
    with (
        closing(Regions()) as regions,
        opened_tiers([spec], [RECORD], regions, SystemClock()),
        pytest.raises(ConfigError, match=r"a server uses it|in use"),
        offline_verbs([spec], secret),
    ):
        raise AssertionError("two have it")


def test_a_directory_is_not_opened_as_a_smaller_one(tmp_path: Path, secret: Path) -> None:
    fill(disk_at(tmp_path / "kv"), [*range(3), 250])
    small = disk_at(tmp_path / "kv", "1MiB")
    with pytest.raises(ConfigError, match="give the size that its server has"), offline_verbs([small], secret):
        raise AssertionError("it is open")
    with offline_verbs([disk_at(tmp_path / "kv")], secret) as verbs:
        assert len(hashes(verbs, "disk")) == 4


@pytest.mark.parametrize("sizes", [(RECORD, 32 * RECORD), (32 * RECORD, RECORD)])
def test_the_size_that_its_server_has_opens_a_directory_whatever_it_holds(
    tmp_path: Path, secret: Path, sizes: tuple[int, int]
) -> None:
    """Servers of two models had it, and the last one has left its records up to the very end."""
    spec = disk_at(tmp_path / "kv")
    fill(spec, [0], served=sizes[0])
    with closing(Regions()) as regions, opened_tiers([spec], [sizes[1]], regions, SystemClock()) as tiers:
        limits = tiers[TierName("disk")].settings.limits
        assert limits is not None
        last = limits.bytes_max // limits.extent_bytes * limits.extent_bytes - RECORD
        address = Address(key=key_of(1), tenant=BLUE, place=Place(offset=last, length=RECORD))
        tiers[TierName("disk")].tier.write([write_of(address, RECORD)])
        before = list(tiers[TierName("disk")].tier.entries())
    other = disk_at(tmp_path / "other").model_copy(update={"name": "other"})
    fill(other, range(3))
    for _ in range(2):
        with offline_verbs([other, spec], secret) as verbs:
            assert len(verbs.do("list", {"tier": "other"})["blocks"]) == 3
    with closing(Regions()) as regions, opened_tiers([spec], [sizes[1]], regions, SystemClock()) as tiers:
        assert list(tiers[TierName("disk")].tier.entries()) == before
        assert tiers[TierName("disk")].settings.limits == limits


def test_a_directory_that_is_none_is_not_made(tmp_path: Path, secret: Path) -> None:
    with pytest.raises(ConfigError, match="there is no tier in"), offline_verbs([disk_at(tmp_path / "no")], secret):
        raise AssertionError("it is open")
    assert not (tmp_path / "no").exists()


def test_a_ruined_index_is_left_for_its_server_to_judge(tmp_path: Path, secret: Path) -> None:
    spec = disk_at(tmp_path / "kv")
    fill(spec, range(3))
    index = tmp_path / "kv" / "index.sqlite"
    index.write_bytes(b"not a database at all" * 500)
    with pytest.raises(ConfigError, match="cannot be read"), offline_verbs([spec], secret):
        raise AssertionError("it is open")
    assert index.read_bytes().startswith(b"not a database")


def test_flags_and_files_say_which_tiers(tmp_path: Path) -> None:
    file = tmp_path / "kvist.toml"
    file.write_text('[tiers.dram]\nbytes = "1GiB"\n[tiers.disk]\npath = "/var/lib/kvist"\nbytes = "1GiB"\n')
    assert [spec.name for spec in offline_tiers([], str(file))] == ["disk"]
    assert [spec.kind for spec in offline_tiers(["pool=redis://a", "disk=b:1GiB"], None)] == ["disk", "pool"]
    with pytest.raises(ConfigError, match="host memory is gone"):
        offline_tiers(["dram=1GiB"], None)
    file.write_text('[tiers.dram]\nbytes = "1GiB"\n')
    with pytest.raises(ConfigError, match="nothing else outlives"):
        offline_tiers([], str(file))
    with pytest.raises(ConfigError, match="twice"):
        offline_tiers(["disk=a:1GiB", "disk=b:1GiB"], None)


def test_the_secret_is_the_servers_own_unless_another_is_named(tmp_path: Path) -> None:
    assert secret_of(None, {"KVIST_CACHE": str(tmp_path)}) == tmp_path / "secret"
    with pytest.raises(ConfigError, match="is not there"):
        secret_of(str(tmp_path / "none"), {})
    with pytest.raises(ConfigError, match="is not there"):
        secret_of("a\0b", {})


def test_nothing_of_the_engine_is_loaded() -> None:
    program = (
        "import sys, kvist.cli.cache_run, kvist.app.administration_offline\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'uvicorn'} & {name.split('.')[0] for name in sys.modules}))"
    )
    assert run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
