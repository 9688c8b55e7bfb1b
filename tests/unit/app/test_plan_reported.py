"""What servers say of their KV memory is read, or refused with the name of what is wrong."""

import json

import pytest

from fakes.engine import ScriptedEngine
from fakes.serving import app_of, ask
from fakes.tokenizer import ByteTokenizer
from fakes.told import told, vllm_metrics
from fakes.vllm_memory import recorded
from kvist.app.plan_reported import Reported, ask_reported, read_reported
from kvist.base.errors import ConfigError, WireError

VLLM = (
    'vllm:cache_config_info{block_size="32",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
    'gpu_memory_utilization="0.9",kv_cache_max_concurrency="5.6875",kv_cache_memory_bytes="None",'
    'kv_cache_size_tokens="46592",num_gpu_blocks="1456",num_gpu_blocks_override="None"} 1.0\n'
)
KVIST = """\
kvist_config_info{block_tokens="16",dtype="bfloat16",model_tokens_max="8192",sequences_max="64",step_tokens="1024",\
window_checkpoint_tokens="4096"} 1.0
kvist_kv_blocks{group="0",state="used"} 3.0
kvist_kv_blocks{group="0",state="free"} 7.0
kvist_kv_blocks{group="1",state="free"} 5.0
kvist_kv_bytes 1.048576e+06
kvist_kv_bytes_per_token 1024.0
kvist_weights_bytes 2e+06
kvist_workspace_bytes 0.0
"""


def reported(text: str) -> Reported:
    return read_reported(text, "http://there")


def test_a_vllm_is_read() -> None:
    said = reported(VLLM)
    assert (said.rules, said.blocks, said.block_tokens, said.dtype) == ("vllm", (1456,), 32, "auto")
    assert (said.tokens, said.concurrency, said.utilisation) == (46_592, 5.6875, 0.9)
    assert (said.kv_bytes, said.blocks_given, said.prefix_caching, said.engines) == (None, None, True, 1)


def test_a_real_vllm_is_read() -> None:
    said = recorded()["smollm2", "bytes"]
    assert (said.version, said.tokens_max, said.blocks, said.kv_bytes) == ("0.32.0", 8192, (1456,), 2**30)


def test_engines_that_share_an_address_share_the_blocks() -> None:
    said = reported(VLLM + VLLM.replace('engine="0"', 'engine="1"'))
    assert (said.engines, said.blocks) == (2, (728,))


def test_kvist_is_read() -> None:
    said = reported(KVIST)
    assert (said.rules, said.blocks, said.block_tokens, said.dtype) == ("kvist", (10, 5), 16, "bfloat16")
    assert (said.kv_bytes, said.bytes_per_token, said.weights_bytes, said.workspace_bytes) == (
        2**20,
        1024,
        2 * 10**6,
        0,
    )
    assert (said.step_tokens, said.sequences_max, said.model_tokens_max) == (1024, 64, 8192)
    assert (said.window_checkpoint_tokens, said.tokens) == (4096, 160)


def test_kvist_s_own_metrics_are_read() -> None:
    engine = ScriptedEngine()
    said = reported(ask(app_of(engine, ByteTokenizer()), "/metrics").text)
    engine.close()
    assert (said.rules, said.blocks, said.kv_bytes, said.window_checkpoint_tokens) == ("kvist", (100,), 2**20, 2048)


def test_a_vllm_with_kvist_s_tiers_is_a_vllm() -> None:
    assert reported(vllm_metrics()).rules == "vllm"
    assert reported(KVIST + VLLM).rules == "vllm"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no vLLM and no server of Kvist's"),
        ("<html>\n", "no vLLM and no server of Kvist's"),
        ('kvist_kv_blocks{group="0",state="free"} 7.0\n', "older release of Kvist"),
        ("vllm:cache_config_info{{{{\n", "cannot be read"),
        ('vllm:cache_config_info{a="b} 1\n', "cannot be read"),
        ("vllm:cache_config_info much\n", "cannot be read"),
        ("vllm:cache_config_info 1\n", "cache_dtype"),
        (VLLM.replace('"1456"', '"None"'), "does not say num_gpu_blocks"),
        (VLLM.replace('"1456"', '"1e400"'), "num_gpu_blocks is '1e400'"),
        (VLLM.replace('"1456"', '"-5"'), "num_gpu_blocks is '-5'"),
        (VLLM.replace('"32"', '"31.5"'), "block_size is '31.5'"),
        (VLLM.replace('"46592"', '"lots"'), "kv_cache_size_tokens is 'lots'"),
        (VLLM.replace('"5.6875"', '"nan"'), "kv_cache_max_concurrency is 'nan'"),
        (VLLM.replace('"auto"', f'"{"x" * 999}"'), "cache_dtype is 'xxx"),
        (KVIST.replace('"16"', '"0"'), "block_tokens is '0'"),
        (KVIST.replace("1.048576e+06", "NaN"), "kvist_kv_bytes is nan"),
        (KVIST.replace("1.048576e+06", "+Inf"), "kvist_kv_bytes is inf"),
        (KVIST.replace("7.0", "-7.0"), "kvist_kv_blocks is -7.0"),
        (KVIST.replace('group="1"', 'group="9"'), "how many blocks each KV group has"),
        (KVIST.replace('group="1"', 'group="x"'), "group is 'x'"),
        (KVIST.replace("kvist_kv_bytes 1", "kvist_kv_bytez 1"), "does not say kvist_kv_bytes"),
    ],
    ids=lambda text: text[:30],
)
def test_what_cannot_be_is_one_error_with_its_name(text: str, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint) as caught:
        reported(text)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


def test_metrics_of_others_are_passed_over_quickly() -> None:
    others = "\n".join(f'other_metric{{number="{number}"}} {number}' for number in range(100_000))
    assert reported(f"{others}\n{VLLM}{others}\n").blocks == (1456,)


def test_a_server_is_asked_for_what_its_metrics_do_not_say() -> None:
    models = {"data": [{"id": "m", "max_model_len": 8192}]}
    answers = {
        "/metrics": (200, VLLM.encode()),
        "/version": (200, b'{"version": "0.33.0"}'),
        "/v1/models": (200, json.dumps(models).encode()),
    }
    with told(answers) as url:
        said = ask_reported(f"{url}/v1/")
        assert (said.url, said.version, said.tokens_max) == (url, "0.33.0", 8192)
    with told({"/metrics": answers["/metrics"], "/v1/models": (401, b"")}) as url:
        said = ask_reported(url)
        assert (said.version, said.tokens_max) == (None, None)


@pytest.mark.parametrize("length", [-1, 0, "x", 1.5, True, [1]])
def test_a_length_that_cannot_be_is_refused(length: object) -> None:
    models = json.dumps({"data": [{"max_model_len": length}]}).encode()
    answers = {"/metrics": (200, VLLM.encode()), "/v1/models": (200, models)}
    with told(answers) as url, pytest.raises(WireError, match="max_model_len"):
        ask_reported(url)


@pytest.mark.parametrize("models", [b"", b"[]", b'{"data": 7}', b'{"data": [7]}', b'{"data": [{}]}'])
def test_models_may_be_odd(models: bytes) -> None:
    with told({"/metrics": (200, VLLM.encode()), "/v1/models": (200, models)}) as url:
        assert ask_reported(url).tokens_max is None


def test_no_metrics_and_no_url_are_errors() -> None:
    with told({"/metrics": (404, b"")}) as url, pytest.raises(WireError, match="/metrics answers with status 404"):
        ask_reported(url)
    with pytest.raises(ConfigError, match="not the base URL"):
        ask_reported("there")
