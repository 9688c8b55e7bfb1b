"""The weights that a vLLM serves are found where it finds them, and named by what they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvist.app.progress import Progress
from kvist.app.vllm_weights import identified_weights, weight_files
from kvist.base.errors import ConfigError


def make(directory: Path, **files: bytes) -> Path:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name.replace("_", ".")).write_bytes(content)
    return directory


def digest(model: object) -> str:
    stages: list[Progress] = []
    found = identified_weights(str(model), None, stages.append)
    assert stages == [Progress(stage=f"Identifying the weights of {model}")]
    return found


def test_a_directory_is_known_by_its_weights_alone(tmp_path: Path) -> None:
    first = make(tmp_path / "a", x_safetensors=b"one", config_json=b"{}")
    same = make(tmp_path / "b", x_safetensors=b"one", config_json=b"other")
    other = make(tmp_path / "c", x_safetensors=b"two")
    assert digest(first) == digest(same) != digest(other)


def test_of_several_formats_the_one_that_is_loaded_counts(tmp_path: Path) -> None:
    both = make(tmp_path / "a", x_safetensors=b"one", x_bin=b"old", y_gguf=b"q")
    assert [path.name for path in weight_files(str(both), None)] == ["x.safetensors"]
    old = make(tmp_path / "b", y_bin=b"2", x_bin=b"1")
    assert [path.name for path in weight_files(str(old), None)] == ["x.bin", "y.bin"]


def test_a_file_may_be_the_model(tmp_path: Path) -> None:
    file = make(tmp_path / "a", x_gguf=b"quantised") / "x.gguf"
    assert weight_files(str(file), None) == [file]


def test_a_model_in_the_hubs_cache_is_found(tmp_path: Path) -> None:
    base, main, other = tmp_path / "models--some--model", "c0ffee" + "0" * 34, "decade" + "0" * 34
    for commit in (main, other):
        make(base / "snapshots" / commit, x_safetensors=commit.encode())
    make(base / "refs", main=main.encode())
    program = (
        "import sys; from kvist.app.vllm_weights import weight_files; "
        f"sys.stdout.write(str([weight_files('some/model', each)[0].parent.name for each in (None, '{other}')]))"
    )
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment
    )
    assert answer.stdout == str([main, other])


@pytest.mark.parametrize("model", ["nobody/nothing", "not a name at all", "", "s3://bucket/model", "a" * 300, "nul\0"])
def test_weights_that_are_not_here_need_a_name(model: str) -> None:
    with pytest.raises(ConfigError, match="weights_revision"):
        weight_files(model, None)


def test_neither_do_directories_without_any(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="weights_revision"):
        weight_files(str(make(tmp_path / "a", config_json=b"{}")), None)
