"""The weights that a vLLM serves are found where it finds them, and named by what they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvist.app.progress import Progress
from kvist.app.vllm_weights import Place, files_beside, identified_weights, weight_files
from kvist.base.errors import ConfigError


def make(directory: Path, **files: bytes) -> Path:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name.replace("__", " ").replace("_", ".").replace(" ", "_")).write_bytes(content)
    return directory


def names(model: Path, load_format: str = "auto") -> list[str]:
    return [path.name for path in weight_files(Place(model=str(model), load_format=load_format))]


def digest(model: object) -> str:
    stages: list[Progress] = []
    found = identified_weights(Place(model=str(model)), stages.append)
    assert stages == [Progress(stage=f"Identifying the weights of {model}")]
    return found


def test_a_directory_is_known_by_its_weights_alone(tmp_path: Path) -> None:
    first = make(tmp_path / "a", x_safetensors=b"one", config_json=b"{}")
    same = make(tmp_path / "b", x_safetensors=b"one", config_json=b"other")
    other = make(tmp_path / "c", x_safetensors=b"two")
    assert digest(first) == digest(same) != digest(other)


def test_of_several_formats_the_one_that_is_loaded_counts(tmp_path: Path) -> None:
    both = make(tmp_path / "a", x_safetensors=b"one", x_bin=b"old", y_gguf=b"q")
    assert names(both) == ["x.safetensors"]
    assert names(make(tmp_path / "b", y_bin=b"2", x_bin=b"1")) == ["x.bin", "y.bin"]


@pytest.mark.parametrize(
    ("load_format", "loaded"), [("pt", ["z.pt"]), ("npcache", ["x.bin"]), ("safetensors", ["x.safetensors"])]
)
def test_the_format_that_vllm_was_told_counts(tmp_path: Path, load_format: str, loaded: list[str]) -> None:
    assert names(make(tmp_path / "a", x_safetensors=b"one", x_bin=b"old", z_pt=b"older"), load_format) == loaded


@pytest.mark.parametrize("load_format", ["tensorizer", "ipc_cache", "modelexpress", "a plugin's"])
def test_weights_that_are_loaded_from_elsewhere_need_a_name(tmp_path: Path, load_format: str) -> None:
    with pytest.raises(ConfigError, match=f"{load_format}.*weights_revision"):
        names(make(tmp_path / "a", x_safetensors=b"not these"), load_format)


def test_what_lies_beside_weights_is_found(tmp_path: Path) -> None:
    model = make(tmp_path / "a", x_safetensors=b"", config_json=b"", preprocessor__config_json=b"", modeling_py=b"")
    place = Place(model=str(model))
    assert [path.name for path in files_beside(place, runs_code=False)] == ["preprocessor_config.json"]
    code = [path.name for path in files_beside(place, runs_code=True)]
    assert code == ["preprocessor_config.json", "modeling.py"]
    for model_without in ("nobody/nothing", str(model / "x.safetensors")):
        assert files_beside(Place(model=model_without), runs_code=True) == []


def test_a_file_may_be_the_model(tmp_path: Path) -> None:
    file = make(tmp_path / "a", x_gguf=b"quantised") / "x.gguf"
    assert weight_files(Place(model=str(file))) == [file]


def test_a_model_in_the_hubs_cache_is_found(tmp_path: Path) -> None:
    base, main, other = tmp_path / "models--some--model", "c0ffee" + "0" * 34, "decade" + "0" * 34
    for commit in (main, other):
        make(base / "snapshots" / commit, x_safetensors=commit.encode())
    make(base / "refs", main=main.encode())
    assert snapshots({"HF_HUB_CACHE": str(tmp_path)}, None, other) == [main, other]
    # Where vLLM was told to put it, whatever is in the client's own cache.
    assert snapshots({"HF_HUB_CACHE": str(tmp_path / "none")}, str(tmp_path), other) == [main, other]


def snapshots(environment: dict[str, str], download_dir: str | None, other: str) -> list[str]:
    """Which commits are found as the main one and as one that is named; the client reads its environment once."""
    program = (
        "import sys; from kvist.app.vllm_weights import Place, weight_files; "
        f"revisions, folder = (None, {other!r}), {download_dir!r}; "
        "places = [Place(model='some/model', revision=each, download_dir=folder) for each in revisions]; "
        "sys.stdout.write(' '.join(weight_files(each)[0].parent.name for each in places))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=os.environ | environment
    )
    return answer.stdout.split()


@pytest.mark.parametrize("model", ["nobody/nothing", "not a name at all", "", "s3://bucket/model", "a" * 300, "nul\0"])
def test_weights_that_are_not_here_need_a_name(model: str) -> None:
    with pytest.raises(ConfigError, match="weights_revision"):
        weight_files(Place(model=model))


def test_neither_do_directories_without_any(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="weights_revision"):
        names(make(tmp_path / "a", config_json=b"{}"))
