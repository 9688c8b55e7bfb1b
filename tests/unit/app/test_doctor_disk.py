"""What is said of a directory before and after it is a tier's; nothing is made there."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvist.app.doctor_disk import disk_findings
from kvist.app.doctor_findings import Finding
from kvist.app.tier_specs import DiskSpec
from kvist.tiers.disk import DiskTier
from kvist.tiers.disk_settings import DiskSettings

MIB = 2**20


def looked_at(path: Path | str, size: int = 64 * MIB, free_min: int = 1, *, is_running: bool = False) -> list[Finding]:
    spec = DiskSpec(name="disk", path=os.fspath(path), bytes=size, free_min=free_min)
    return list(disk_findings(spec, is_running=is_running))


def statuses(found: list[Finding]) -> list[str]:
    return [each.status for each in found]


def tier_in(path: Path) -> DiskTier:
    return DiskTier("disk", DiskSettings(directory=path, bytes_max=64 * MIB, bytes_free_min=1))


def contents(path: Path) -> dict[str, int]:
    return {each.name: each.stat().st_size for each in path.rglob("*")}


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    found = looked_at(tmp_path / "a" / "b")
    assert statuses(found) == ["ok", "ok"]
    assert "can be made" in found[0].text
    assert contents(tmp_path) == {}


def test_an_empty_directory_stays_empty(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert statuses(looked_at(tmp_path)) == ["ok", "ok"]
    assert contents(tmp_path) == {}


def test_a_tier_that_nobody_uses_stays_as_it_is_and_usable(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    tier_in(folder).close()
    before = contents(folder)
    found = looked_at(folder)
    assert statuses(found) == ["ok", "ok"]
    assert "nobody uses it" in found[0].text
    assert {name for name, _ in before.items()} == set(contents(folder))
    tier_in(folder).close()


@contextmanager
def used_by_another(folder: Path) -> Iterator[int]:
    """Another process has the directory."""
    program = (
        "import sys; from pathlib import Path; from kvist.tiers.disk_directory import Directory;"
        f"held = Directory(Path({os.fspath(folder)!r})); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process.pid
        process.communicate()


def test_a_directory_in_use_is_a_problem_unless_a_running_vllm_was_named(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    with used_by_another(folder) as pid:
        (found,) = looked_at(folder)
        assert (found.status, str(pid) in found.text) == ("problem", True)
        beside = looked_at(folder, is_running=True)
        assert statuses(beside) == ["ok", "ok"]
        assert str(pid) in beside[0].text
    assert statuses(looked_at(folder)) == ["ok", "ok"]


def test_what_is_no_directory_of_ours_is_a_problem(tmp_path: Path) -> None:
    file, link, strange, above = (tmp_path / name for name in ("file", "link", "strange", "file/below"))
    file.write_text("x")
    link.symlink_to(tmp_path, target_is_directory=True)
    strange.mkdir()
    (strange / "holiday.jpg").write_text("x")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (file, link, strange, above, loop, "/proc/kvist", "/" + "x" * 300):
        found = looked_at(path)
        assert found[-1].status == "problem", path
        assert found[-1].text
    assert contents(strange) == {"holiday.jpg": 1}


def test_one_that_others_may_enter_is_a_note(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    found = looked_at(tmp_path)
    assert statuses(found) == ["ok", "note", "ok"]
    assert "chmod 700" in found[1].remedy
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_relative_path_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert statuses(looked_at("kv")) == ["note", "ok", "ok"]


def test_room_is_compared_with_the_budget_and_the_floor(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    system = os.statvfs(tmp_path)
    whole, free = system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize
    assert statuses(looked_at(tmp_path, 2 * whole)) == ["ok", "problem"]
    assert statuses(looked_at(tmp_path, free // 2, free_min=free * 3 // 4)) == ["ok", "note"]
    assert statuses(looked_at(tmp_path, free // 2, free_min=2 * free)) == ["ok", "problem"]


def test_what_the_tier_has_already_counts_as_its_room(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    tier_in(tmp_path / "kv").close()
    assert statuses(looked_at(tmp_path / "kv", free_min=2**59)) == ["ok", "note"]
