"""An examination as a whole: what it looks at, in which order, and what one mistake keeps it from."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from fakes.clock import HandClock
from fakes.told import told, vllm_metrics
from kvist.app.clock import SystemCalendar
from kvist.app.doctor import Asked, Surroundings, examine
from kvist.app.doctor_findings import Finding
from kvist.app.doctor_release import Said
from kvist.base.errors import ConfigError
from real.redis import free_port

GIB = 2**30
FITS = Said(0, ('kvist-doctor:["0.32.0", ""]',))
TRANSFER = {
    "kv_connector": "KvistConnector",
    "kv_connector_module_path": "kvist.app.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


def fits(command: Sequence[str], seconds: float) -> Said:
    return FITS


def around(root: Path, free: int = 64 * GIB, **environment: str) -> Surroundings:
    return Surroundings(
        environment={"KVIST_CACHE": str(root / "cache")} | environment,
        clock=HandClock(),
        calendar=SystemCalendar(),
        bytes_free=lambda: free,
        run=fits,
        is_vllm_there=True,
    )


def transfer(**extra: object) -> str:
    return json.dumps(TRANSFER | {"kv_connector_extra_config": extra})


def of(found: Sequence[Finding], status: str) -> list[tuple[str, str]]:
    return [(each.check, each.text) for each in found if each.status == status]


def checks(found: Sequence[Finding], status: str) -> list[str]:
    return [check for check, _ in of(found, status)]


def test_a_good_setup_has_no_problem(tmp_path: Path) -> None:
    file = tmp_path / "kvist.toml"
    file.write_text(f'[tiers.dram]\nbytes = "4GiB"\n[tiers.disk]\npath = "{tmp_path / "kv"}"\nbytes = "1MiB"\n')
    found = examine(Asked(transfer=transfer(kvist_config=str(file))), around(tmp_path))
    assert of(found, "problem") == []
    assert checks(found, "ok") == ["vllm", "transfer", "config", "hashes", "memory", "tier disk", "tier disk", "secret"]
    assert checks(found, "note") == ["server", "sizes"]
    assert not (tmp_path / "kv").exists()
    assert not (tmp_path / "cache").exists()


def test_every_mistake_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "stranger").write_text("x")
    wrong = {"kv_connector_extra_config": {"kvist_tiers": ["dram=128GiB", f"disk={tmp_path / 'stranger'}:1GiB"]}}
    asked = Asked(
        transfer=json.dumps(TRANSFER | {"kv_load_failure_policy": "fail"} | wrong),
        hash_algorithm="xxhash",
        url=f"http://127.0.0.1:{free_port()}",
    )
    found = examine(asked, around(tmp_path))
    assert checks(found, "problem") == ["server", "transfer", "hashes", "memory", "tier disk"]
    assert all(each.remedy for each in found if each.status == "problem")


def test_tiers_that_cannot_be_are_one_problem_and_the_rest_is_looked_at_all_the_same(tmp_path: Path) -> None:
    for extra in ({}, {"kvist_tiers": ["dram=x"]}, {"kvist_config": "/no/such.toml"}, {"kvist_tier": []}):
        found = examine(Asked(transfer=transfer(**extra)), around(tmp_path))
        assert checks(found, "problem") == ["config"]
        assert checks(found, "ok") == ["vllm", "transfer", "hashes"]


def test_settings_may_be_named_without_vllms(tmp_path: Path) -> None:
    file = tmp_path / "kvist.toml"
    file.write_text('load_when = "always"\n[tiers.dram]\nbytes = "1GiB"\n')
    asked = Asked(config=str(file), tiers=(f"disk={tmp_path / 'kv'}:1GiB",))
    found = examine(asked, around(tmp_path))
    assert "dram, disk" in dict(of(found, "ok"))["config"]
    assert "load_when" in dict(of(found, "note"))["config"]
    with pytest.raises(ConfigError, match="kvist_config"):
        examine(Asked(transfer=transfer(), config=str(file)), around(tmp_path))


def test_nothing_given_is_said(tmp_path: Path) -> None:
    found = examine(Asked(), around(tmp_path))
    assert checks(found, "note") == ["server", "config"]
    assert of(found, "problem") == []


def test_a_running_vllm_says_what_was_not_given(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256,'
        ' "num_attention_heads": 4, "vocab_size": 9, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}'
    )
    models = {"data": [{"root": str(tmp_path), "max_model_len": 1024}]}
    answers = {
        "/version": (200, b'{"version": "0.32.0"}'),
        "/metrics": (200, vllm_metrics(algorithm="xxhash").encode()),
        "/v1/models": (200, json.dumps(models).encode()),
    }
    tiers = ("dram=64MiB", f"disk={tmp_path / 'kv'}:64MiB")
    with told(answers) as url:
        found = examine(Asked(url=url, tiers=tiers, hash_algorithm="sha256"), around(tmp_path, free=0))
    assert checks(found, "problem") == ["hashes"]
    assert checks(found, "note") == ["hashes", "sizes"]
    assert any("1,024 tokens" in text for _, text in of(found, "ok"))


def test_what_is_given_twice_over_is_noted(tmp_path: Path) -> None:
    file = tmp_path / "kvist.toml"
    file.write_text('weights_revision = "v3"\n[tiers.dram]\nbytes = "1GiB"\nfaults = { one_in = 3 }\n')
    found = examine(Asked(config=str(file)), around(tmp_path, free=GIB + GIB // 2, PYTHONHASHSEED="7"))
    assert [text.split()[0] for check, text in of(found, "note") if check == "config"] == ["weights_revision", "tier"]
    assert "memory" in checks(found, "note")


def test_a_disk_that_was_filled_under_a_secret_that_is_gone_is_a_problem(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    folder.mkdir(mode=0o700)
    (folder / "index.sqlite").write_bytes(b"")
    found = examine(Asked(tiers=(f"disk={folder}:1GiB",)), around(tmp_path))
    assert "secret" in checks(found, "problem")


@pytest.mark.parametrize("tokens", [10**400, 2**31])
def test_a_length_that_no_model_has_is_not_believed(tmp_path: Path, tokens: int) -> None:
    model = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64}
    model |= {"num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 10, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(model))
    answers = {
        "/version": b'{"version": "0.32.0"}',
        "/metrics": vllm_metrics().encode(),
        "/v1/models": json.dumps({"data": [{"root": str(tmp_path), "max_model_len": tokens}]}).encode(),
    }
    with told({path: (200, body) for path, body in answers.items()}) as url:
        found = examine(Asked(url=url, tiers=("dram=1GiB",)), around(tmp_path))
    assert any("prompts of 512 tokens" in text for check, text in of(found, "ok") if check == "sizes")


@pytest.mark.parametrize(("url", "said"), [("redis://kv:hunter2@{}", 1), ("redis://:hunter2@{}", 1), ("redis://{}", 0)])
def test_a_password_that_vllm_would_log_is_a_note_without_it(tmp_path: Path, url: str, said: int) -> None:
    tiers = [f"pool={url.format(f'127.0.0.1:{free_port()}/0')}"]
    found = examine(Asked(transfer=transfer(kvist_tiers=tiers)), around(tmp_path))
    assert sum("a password stands in kvist_tiers" in text for _, text in of(found, "note")) == said
    assert not any("hunter2" in each.text + each.remedy for each in found)
