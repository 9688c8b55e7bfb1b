"""What the system says about memory, read from control groups of every kind, and from this very process."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kvist.app.memory import bytes_free, bytes_peak, bytes_resident, start_peak

MIB = 2**20
PLENTY = 2**62


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., int]:
    """Writes a tree of control groups and asks what it leaves a process whose membership is given."""

    def ask(membership: str | bytes, files: dict[str, str | bytes]) -> int:
        for name, content in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        lines = tmp_path / "membership"
        lines.write_bytes(membership if isinstance(membership, bytes) else membership.encode())
        return bytes_free(tmp_path / "cgroup", lines)

    return ask


def version_2(folder: str, limit: object, used: object, stat: str = "anon 1\ninactive_file 0\n") -> dict[str, str]:
    prefix = f"{folder}/" if folder else ""
    return {f"{prefix}memory.max": f"{limit}\n", f"{prefix}memory.current": f"{used}\n", f"{prefix}memory.stat": stat}


def version_1(
    folder: str, limit: object, used: object, stat: str = "cache 1\ntotal_inactive_file 0\n"
) -> dict[str, str]:
    prefix = f"memory/{folder}/" if folder else "memory/"
    return {
        f"{prefix}memory.limit_in_bytes": f"{limit}\n",
        f"{prefix}memory.usage_in_bytes": f"{used}\n",
        f"{prefix}memory.stat": stat,
    }


def is_unbounded(left: int) -> bool:
    """Whether only the system itself bounds what is left; it changes a little from one moment to the next."""
    return abs(left - psutil.virtual_memory().available) < 2**30


KINDS = pytest.mark.parametrize(
    ("line", "group"),
    [("0::/a/b\n", version_2), ("4:cpu,memory:/a/b\n3:cpuset:/\n0::/\n", version_1)],
    ids=["v2", "v1"],
)


@KINDS
def test_a_limit_leaves_what_is_not_used(tree, line, group) -> None:
    assert tree(line, group("a/b", 100 * MIB, 30 * MIB)) == 70 * MIB


@KINDS
def test_page_cache_that_can_be_dropped_is_not_used(tree, line, group) -> None:
    key = "inactive_file" if group is version_2 else "total_inactive_file"
    assert tree(line, group("a/b", 100 * MIB, 30 * MIB, f"x 7\n{key} {10 * MIB}\nother 3\n")) == 80 * MIB


@KINDS
def test_more_droppable_than_used_is_no_gift(tree, line, group) -> None:
    key = "inactive_file" if group is version_2 else "total_inactive_file"
    assert tree(line, group("a/b", 100 * MIB, MIB, f"{key} {50 * MIB}\n")) == 100 * MIB


@KINDS
def test_of_nested_limits_the_tightest_holds(tree, line, group) -> None:
    inner, outer, root = group("a/b", 90 * MIB, 10 * MIB), group("a", 60 * MIB, 20 * MIB), group("", 500 * MIB, 0)
    assert tree(line, inner | outer | root) == 40 * MIB
    assert tree(line, group("", 45 * MIB, 10 * MIB)) == 35 * MIB
    assert tree(line, group("other", 1, 0)) == 35 * MIB, "a group that is not ours"


@KINDS
def test_a_group_over_its_limit_has_nothing_left(tree, line, group) -> None:
    assert tree(line, group("a/b", 10 * MIB, 11 * MIB)) == 0
    assert tree(line, group("a/b", 0, 0)) == 0


@KINDS
@pytest.mark.parametrize("limit", ["max", PLENTY, 2**63 - 4096, -1, "", "12 MB", "1e9", "nan", "\x00", "९", "9" * 5000])
def test_no_limit_and_what_is_none_bound_nothing(tree, line, group, limit) -> None:
    assert is_unbounded(tree(line, group("a/b", limit, 5)))


@KINDS
@pytest.mark.parametrize("used", ["", "many", -5, "\xff"])
def test_a_limit_holds_even_if_its_use_can_not_be_read(tree, line, group, used) -> None:
    assert tree(line, group("a/b", 100 * MIB, used)) == 100 * MIB


@KINDS
@pytest.mark.parametrize(
    "stat", ["", "garbage", "a b c\n\n \n", "inactive_file\n", "inactive_file many\n", "\x00" * 99]
)
def test_a_limit_holds_whatever_else_the_statistics_say(tree, line, group, stat) -> None:
    assert tree(line, group("a/b", 100 * MIB, 30 * MIB, stat)) == 70 * MIB


@KINDS
def test_files_that_are_missing_or_folders_or_not_text(tree, line, group, tmp_path) -> None:
    files = group("a/b", 100 * MIB, 30 * MIB)
    limit, used, stat = files
    assert tree(line, {limit: files[limit]}) == 100 * MIB
    assert tree(line, {used: files[used]}) == 70 * MIB
    assert tree(line, {stat: b"\xff\xfe\nvery \xff\n"}) == 70 * MIB
    (tmp_path / "cgroup" / stat).unlink()
    (tmp_path / "cgroup" / stat).mkdir()
    assert tree(line, {}) == 70 * MIB
    (tmp_path / "cgroup" / limit).unlink()
    (tmp_path / "cgroup" / limit).mkdir()
    assert is_unbounded(tree(line, {}))


@pytest.mark.parametrize(
    "membership",
    [
        "",
        "\n",
        "garbage\n",
        "0:\n",
        "0::\n",
        "::::\n",
        "0::relative\n",
        b"\xff\xfe:\x00\n",
        "x" * 100_000,
        "0::/\x00\n",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_a_membership_that_is_none_bounds_nothing(tree, membership) -> None:
    assert is_unbounded(tree(membership, {}))


def test_a_line_that_is_none_does_not_hide_the_next(tree) -> None:
    assert tree("garbage\n\n0::/a\n", version_2("a", 50 * MIB, 0)) == 50 * MIB


def test_names_that_are_no_text_are_found(tree) -> None:
    name = b"/b\xffd\n"
    folder = name.strip(b"/\n").decode(errors="surrogateescape")
    assert tree(b"0::" + name, version_2(folder, 50 * MIB, 0)) == 50 * MIB


def test_both_versions_at_once_hold_both(tree) -> None:
    files = version_2("u", 80 * MIB, 0) | version_1("m", 70 * MIB, 0)
    assert tree("4:memory:/m\n0::/u\n", files) == 70 * MIB
    assert tree("4:name=memory:/m\n0::/u\n", files) == 80 * MIB


def test_a_path_seen_from_inside_a_container_leads_at_least_to_its_root(tree) -> None:
    assert tree("0::/../../elsewhere\n", version_2("", 50 * MIB, 0)) == 50 * MIB
    assert tree("5:memory:/docker/0123\n", version_1("", 40 * MIB, 0)) == 40 * MIB


def test_a_system_without_control_groups_bounds_nothing(tmp_path) -> None:
    assert is_unbounded(bytes_free(tmp_path / "none", tmp_path / "nowhere"))
    assert is_unbounded(bytes_free(tmp_path, tmp_path))


def test_this_process_can_have_something_and_no_more_than_there_is() -> None:
    assert 0 < bytes_free() <= psutil.virtual_memory().total


def test_what_is_resident_grows_with_what_is_touched() -> None:
    before = bytes_resident()
    block = bytearray(b"\x01" * (64 * MIB))
    assert 60 * MIB <= bytes_resident() - before <= 80 * MIB
    assert len(block) == 64 * MIB


PEAK = """
from kvist.app.memory import bytes_peak, bytes_resident, start_peak
block = bytearray(2**26)
del block
whole = bytes_peak()
start_peak()
anew = bytes_peak()
block = bytearray(2**25)
print(whole, anew, bytes_peak(), bytes_resident())
"""


def test_the_peak_is_the_most_since_it_was_started() -> None:
    out = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True).stdout
    whole, anew, after, resident = map(int, out.split())
    assert whole - anew >= 50 * MIB
    assert 30 * MIB <= after - anew <= 45 * MIB
    assert after >= resident - MIB


def test_the_peak_is_never_below_what_is_resident() -> None:
    start_peak()
    assert bytes_peak() >= 0.99 * bytes_resident()


AGAIN = """
from kvist.app.memory import HostMeter

def take():
    return [bytearray(100_000) for _ in range(960)]

meter = HostMeter()
last = take()[-1]  # all before it is given back, and kept for later by the C library
meter.start()
again = take()
print(meter.taken())
"""


def test_what_is_taken_again_counts_though_the_process_had_kept_it() -> None:
    taken = int(subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, check=True).stdout)
    assert 88 * 2**20 <= taken <= 104 * 2**20
