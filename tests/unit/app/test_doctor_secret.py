"""What is said of the secret; none is made."""

from pathlib import Path

import pytest

from kvist.app.doctor_findings import Finding
from kvist.app.doctor_secret import fingerprint, secret_findings

SECRET = "ab" * 32


def looked_at(path: Path | str | None, *kinds: str, root: Path | None = None, is_filled: bool = False) -> list[Finding]:
    environment = {} if root is None else {"KVIST_CACHE": str(root)}
    return list(secret_findings(None if path is None else str(path), kinds, environment, is_filled=is_filled))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return path


def test_a_private_secret_is_fine_for_one_host(secret: Path) -> None:
    (found,) = looked_at(secret, "dram", "disk")
    assert (found.status, fingerprint(bytes.fromhex(SECRET)) in found.text) == ("ok", True)
    assert SECRET not in found.text


def test_who_shares_a_pool_is_told_to_compare(secret: Path, tmp_path: Path) -> None:
    (named,) = looked_at(secret, "pool")
    (own,) = looked_at(None, "pool", root=tmp_path)
    assert named.status == own.status == "note"
    assert "cache_secret_file" in own.remedy


def test_equal_secrets_have_equal_fingerprints_and_others_have_not() -> None:
    assert fingerprint(b"a" * 32) == fingerprint(b"a" * 32) != fingerprint(b"b" * 32)


def test_a_missing_secret_is_not_made(tmp_path: Path) -> None:
    assert looked_at(tmp_path / "none", "dram")[0].status == "ok"
    assert looked_at(tmp_path / "none", "pool")[0].status == "note"
    assert looked_at(tmp_path / "none", "disk", is_filled=True)[0].status == "problem"
    assert list(tmp_path.iterdir()) == []


def test_one_that_others_read_or_that_is_none_is_a_problem(secret: Path, tmp_path: Path) -> None:
    secret.chmod(0o644)
    (found,) = looked_at(secret)
    assert (found.status, "chmod 600" in found.text) == ("problem", True)
    secret.chmod(0o600)
    for content in ("", "zz" * 32, "ab" * 31, "\x00" * 64):
        secret.write_text(content)
        assert [each.status for each in looked_at(secret)] == ["problem"]
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    assert [each.status for each in looked_at(link)] == ["problem"]
    assert [each.status for each in looked_at(tmp_path)] == ["problem"]


@pytest.mark.parametrize("path", ["a\0b", "/" + "x" * 300, "/proc/self/status/secret"])
def test_a_path_that_cannot_be_is_a_problem_or_absent(path: str) -> None:
    assert looked_at(path, "pool")[0].status in ("problem", "note")


def test_a_place_where_others_may_put_theirs_is_a_note(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert [each.status for each in looked_at(tmp_path / "secret", "dram")] == ["ok", "note"]
