"""Which hashes are the same tomorrow and elsewhere."""

import pytest

from kvist.app.doctor_hashes import hash_findings


def statuses(algorithm: str, seed: str | None = None, kinds: tuple[str, ...] = ()) -> list[str]:
    return [each.status for each in hash_findings(algorithm, seed, kinds)]


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_a_random_seed_loses_all_that_outlives_the_process(algorithm: str) -> None:
    for kinds in ((), ("disk",), ("dram", "pool"), ("dram", "disk", "pool")):
        (found,) = hash_findings(algorithm, None, kinds)
        assert found.status == "problem"
        assert "PYTHONHASHSEED" in found.text
        assert "sha256_cbor" in found.remedy
    assert statuses(algorithm, None, ("dram",)) == ["note"]


@pytest.mark.parametrize("seed", ["0", "", "random"])
def test_any_seed_that_is_set_is_the_same_in_every_process(seed: str) -> None:
    assert statuses("xxhash", seed, ("disk",)) == ["note"]
    assert statuses("sha256", seed, ("disk",)) == ["ok"]


def test_sha256_needs_no_seed() -> None:
    assert statuses("sha256") == statuses("sha256", None, ("dram", "disk")) == ["ok"]
    assert statuses("sha256_cbor", None, ("pool",)) == ["ok"]


def test_others_meet_in_a_pool_only_with_the_same_pickle_and_the_same_seed() -> None:
    assert statuses("sha256", None, ("pool",)) == ["note"]
    assert statuses("sha256_cbor", "7", ("pool",)) == ["ok", "note"]
    assert statuses("sha256", "7", ("pool",)) == ["note", "note"]
    assert statuses("xxhash_cbor", "7", ("pool",)) == ["note", "note"]


@pytest.mark.parametrize("algorithm", ["", "md5", "SHA256", "\x1b[2J", "x" * 10_000])
def test_an_algorithm_that_is_none_is_named(algorithm: str) -> None:
    (found,) = hash_findings(algorithm, None, ("dram",))
    assert found.status == "problem"
    assert len(found.text) < 300
    assert "sha256_cbor" in found.remedy
