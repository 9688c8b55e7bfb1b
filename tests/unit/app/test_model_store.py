"""A model in the store is there whole or not at all, whoever dies or waits meanwhile."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kvist.app.manifest import MANIFEST, Manifest, record_files
from kvist.app.model_store import ModelStore
from kvist.app.progress import Progress
from kvist.base.errors import CapacityError, ConfigError, ModelError

DIGEST, OTHER = "a" * 64, "b" * 64


def manifest_of(folder: Path, digest: str = DIGEST, **changes: object) -> Manifest:
    fields = {"source_sha256": digest, "source_name": "x.gguf", "dtype": "bfloat16", "converter": 1}
    return Manifest.model_validate(fields | changes | {"files": record_files(folder)})


def keep(store: ModelStore, text: str = "{}", digest: str = DIGEST, **changes: object) -> Path:
    """Puts a model of one file into the store."""
    with store.lock(digest), store.workspace(digest, wanted=0) as workspace:
        built = workspace / "built"
        built.mkdir()
        (built / "config.json").write_text(text)
        return store.commit(built, manifest_of(built, digest, **changes))


def names(cache: Path) -> set[str]:
    return {path.name for path in (cache / "models").iterdir()}


def test_nothing_is_touched_before_something_is_kept(store: ModelStore, cache: Path) -> None:
    assert store.find(DIGEST) is None
    with pytest.raises(ModelError, match=f"not in the cache.*{DIGEST}.*; do it"):
        store.verify(DIGEST, remedy="do it")
    assert not cache.exists()


def test_a_kept_model_is_found_whole_and_private(store: ModelStore, cache: Path) -> None:
    final = keep(store)
    assert final == store.directory(DIGEST) == cache / "models" / DIGEST
    assert store.verify(DIGEST, remedy="") == store.find(DIGEST) == manifest_of(final)
    assert names(cache) == {DIGEST, f".{DIGEST}.lock"}
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (final, *final.iterdir())}
    assert modes == {0o700, 0o600}
    assert {path.name for path in final.iterdir()} == {"config.json", MANIFEST}


def test_a_model_replaces_another_as_a_whole(store: ModelStore, cache: Path) -> None:
    final = keep(store, "old")
    (final / "more").write_text("x")
    keep(store, "new")
    assert (final / "config.json").read_text() == "new"
    assert store.find(DIGEST) is not None
    assert names(cache) == {DIGEST, f".{DIGEST}.lock"}


def test_a_damaged_model_is_not_found_and_the_reason_is_told(store: ModelStore) -> None:
    (keep(store) / "config.json").write_text("[]")
    told: list[Progress] = []
    assert store.find(DIGEST, report=told.append) is None
    assert "config.json is damaged" in told[-1].stage
    with pytest.raises(ModelError, match=r"config\.json is damaged.*; do it"):
        store.verify(DIGEST, remedy="do it")


@pytest.mark.parametrize("change", [{"converter": 0}, {"converter": 2}, {"dtype": "float32"}])
def test_a_model_of_another_conversion_is_not_taken(store: ModelStore, change: dict[str, object]) -> None:
    keep(store, **change)
    assert store.find(DIGEST) is None
    with pytest.raises(ModelError, match="was made by version"):
        store.verify(DIGEST, remedy="do it")


def test_a_model_under_another_s_name_is_not_taken(store: ModelStore) -> None:
    keep(store).rename(store.directory(OTHER))
    with pytest.raises(ModelError, match="another file"):
        store.verify(OTHER, remedy="do it")


def fill(store: ModelStore, last: Callable[[], object], *, wanted: int = 0) -> None:
    """Writes into a workspace and then does one thing more."""
    with store.lock(DIGEST), store.workspace(DIGEST, wanted=wanted) as workspace:
        (workspace / "deep").mkdir()
        (workspace / "deep" / "file").write_text("x")
        last()


def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), ModelError("x")])
def test_a_workspace_goes_whatever_happens(store: ModelStore, cache: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        fill(store, lambda: fail(error))
    assert names(cache) == {f".{DIGEST}.lock"}


def test_a_failed_replacement_leaves_the_old_model(store: ModelStore) -> None:
    keep(store, "old")
    with pytest.raises(ValueError, match="late"):
        fill(store, lambda: fail(ValueError("late")))
    assert store.find(DIGEST) is not None


def test_without_room_nothing_is_begun(cache: Path) -> None:
    begun: list[bool] = []
    with pytest.raises(CapacityError, match="not enough room"):
        fill(ModelStore(cache, free=lambda _: 999), lambda: begun.append(True), wanted=1000)
    assert not begun
    assert names(cache) == {f".{DIGEST}.lock"}


def test_a_disk_that_fills_up_leaves_nothing(store: ModelStore, cache: Path) -> None:
    with pytest.raises(CapacityError, match="no room was left"):
        fill(store, lambda: Path("/dev/full").write_bytes(b"x"))
    assert names(cache) == {f".{DIGEST}.lock"}


def test_what_the_dead_left_is_removed_and_what_the_living_use_is_not(store: ModelStore, cache: Path) -> None:
    keep(store)
    dead = [cache / "models" / f".{digest}.xyz.work" for digest in (DIGEST, OTHER)]
    for path in dead:
        (path / "built").mkdir(parents=True)
        (path / "built" / "half").write_text("x")
    stranger = cache / "models" / ".something.else"
    stranger.mkdir()
    with ModelStore(cache).lock(OTHER), store.lock(DIGEST):
        assert [path.exists() for path in dead] == [False, False]
        alive = cache / "models" / f".{OTHER}.abc.work"
        alive.mkdir()
        with store.lock("c" * 64):
            assert alive.exists()
    with store.lock("c" * 64):
        assert not alive.exists()
    assert stranger.exists()
    assert store.find(DIGEST) is not None


@pytest.mark.parametrize("place", ["", "models"])
def test_a_file_where_the_cache_should_be_is_told(tmp_path: Path, place: str) -> None:
    root = tmp_path / "cache"
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).write_text("")
    store = ModelStore(root)
    assert store.find(DIGEST) is None
    with pytest.raises(ConfigError, match="is a file"), store.lock(DIGEST):
        raise AssertionError("it was locked")
