"""Whatever changes the KV that is computed changes its name; whatever does not, does not."""

import dataclasses
import enum
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from kvist.blocks.form import Form, Part, Plane
from kvist.blocks.keys import namespace_of
from kvist.connectors.vllm.facts import (
    EngineFacts,
    GroupFacts,
    Provenance,
    Records,
    config_digest,
    hash_scheme,
    kv_facts,
    positions_fact,
)

MODEL: Mapping[str, object] = {"hidden_size": 576, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}
ENGINE = EngineFacts(
    release="0.32",
    model=MODEL,
    draft=None,
    dtype="bfloat16",
    kv_dtype="auto",
    quantization=None,
    draft_quantization=None,
    position_tokens=8192,
    hash_algorithm="sha256",
    hash_tokens=16,
    groups=(GroupFacts(kind="full", window=None, block_tokens=16),),
    media="none",
    code_revision=None,
    computed_scales=False,
)
WHENCE = Provenance(weights="w", draft_weights="", beside="", epoch="0", process="here")


def form(*shape: int) -> Form:
    plane = Plane("kv", "bfloat16", shape)
    return Form(planes=(plane,), part=Part(layers_first=0, layers=shape[0], heads_first=0, heads=shape[1]))


FORMS = (form(30, 3, 16, 128),)


RECORDS = Records(packing="canonical", block_tokens=16, forms=FORMS, layers=(("layer.0", "layer.1"),))


def facts(engine: EngineFacts = ENGINE, whence: Provenance = WHENCE, records: Records = RECORDS) -> Mapping[str, str]:
    return kv_facts(engine, whence, records)


@pytest.mark.parametrize(
    "other",
    [
        facts(dataclasses.replace(ENGINE, model={**MODEL, "hidden_size": 577})),
        facts(dataclasses.replace(ENGINE, draft=MODEL)),
        facts(dataclasses.replace(ENGINE, dtype="float32")),
        facts(dataclasses.replace(ENGINE, kv_dtype="fp8_e4m3")),
        facts(dataclasses.replace(ENGINE, quantization="awq")),
        facts(dataclasses.replace(ENGINE, draft_quantization="awq")),
        facts(dataclasses.replace(ENGINE, media="min_pixels")),
        facts(dataclasses.replace(ENGINE, code_revision="c0ffee")),
        facts(whence=dataclasses.replace(WHENCE, beside="b")),
        facts(dataclasses.replace(ENGINE, groups=(GroupFacts(kind="full", window=512, block_tokens=16),))),
        facts(dataclasses.replace(ENGINE, groups=(GroupFacts(kind="full", window=None, block_tokens=32),))),
        facts(dataclasses.replace(ENGINE, groups=(GroupFacts(kind="latent", window=None, block_tokens=16),))),
        facts(dataclasses.replace(ENGINE, computed_scales=True)),
        facts(whence=dataclasses.replace(WHENCE, weights="v")),
        facts(whence=dataclasses.replace(WHENCE, draft_weights="d")),
        facts(whence=dataclasses.replace(WHENCE, epoch="1")),
        facts(records=dataclasses.replace(RECORDS, packing="cpu amx of vllm 0.32.0")),
        facts(records=dataclasses.replace(RECORDS, forms=(form(30, 1, 16, 128),))),
        facts(records=dataclasses.replace(RECORDS, block_tokens=32)),
        facts(records=dataclasses.replace(RECORDS, layers=(("layer.1", "layer.0"),))),
        facts(records=dataclasses.replace(RECORDS, layers=(("layer.0",), ("layer.1",)))),
    ],
)
def test_what_changes_the_kv_changes_its_name(other: Mapping[str, str]) -> None:
    assert namespace_of(other) != namespace_of(facts())


@pytest.mark.parametrize(
    "same",
    [
        facts(dataclasses.replace(ENGINE, release="0.33")),
        facts(dataclasses.replace(ENGINE, position_tokens=4096)),
        facts(dataclasses.replace(ENGINE, kv_dtype="bfloat16")),
        facts(dataclasses.replace(ENGINE, model={**MODEL, "_name_or_path": "/elsewhere"})),
        facts(dataclasses.replace(ENGINE, model=dict(reversed(MODEL.items())))),
        facts(whence=dataclasses.replace(WHENCE, process="elsewhere")),
    ],
)
def test_what_does_not_change_the_kv_leaves_its_name(same: Mapping[str, str]) -> None:
    assert namespace_of(same) == namespace_of(facts())


def test_kv_with_scales_of_one_process_stays_with_it() -> None:
    scaled = dataclasses.replace(ENGINE, computed_scales=True)
    assert facts(scaled) != facts(scaled, dataclasses.replace(WHENCE, process="elsewhere"))


def test_hashes_that_start_differently_never_meet() -> None:
    schemes = {
        hash_scheme(ENGINE, b"start"),
        hash_scheme(ENGINE, b"other"),
        hash_scheme(dataclasses.replace(ENGINE, hash_algorithm="sha256_cbor"), b"start"),
        hash_scheme(dataclasses.replace(ENGINE, hash_tokens=32), b"start"),
    }
    assert len(schemes) == 4


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn", "mrope"])
def test_the_longest_sequence_does_not_count_for_most_ropes(kind: str) -> None:
    engine = dataclasses.replace(ENGINE, model={"rope_scaling": {"rope_type": kind}})
    assert positions_fact(engine) == "any"


def test_a_rope_that_vllm_has_renamed_while_loading_is_the_same() -> None:
    # Where workers are processes of their own, the scheduler's configuration is as the file has it.
    def engine(kind: str) -> EngineFacts:
        return dataclasses.replace(ENGINE, model={"rope_parameters": {"rope_type": kind, "factor": 40}})

    assert facts(engine("deepseek_yarn")) == facts(engine("yarn")) != facts(engine("linear"))


def test_code_is_known_by_what_it_is_and_not_by_where_it_came_from() -> None:
    there, here = ({"auto_map": {"AutoConfig": f"{origin}configuration.C"}, "x": 1} for origin in ("some/model--", ""))
    assert config_digest(there) == config_digest(here)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": {"type": "longrope"}},
        {"rope_scaling": {"rope_type": "dynamic"}},
        {"text_config": {"rope_parameters": {"rope_type": "longrope"}}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "longrope"},
                "sliding_attention": {"rope_type": "default"},
            }
        },
        {"rope_scaling": {"rope_type": "something new"}},
    ],
)
def test_it_does_for_ropes_that_stretch(config: Mapping[str, object]) -> None:
    engine = dataclasses.replace(ENGINE, model=config)
    longer = dataclasses.replace(engine, position_tokens=16384)
    assert positions_fact(engine) != positions_fact(longer)


class Colour(enum.Enum):
    """Something that is not plain and says what it is."""

    RED = "red"
    BLUE = "blue"


def test_a_digest_does_not_depend_on_where_objects_lie() -> None:
    def config() -> Mapping[str, object]:
        return {"hook": object(), "call": lambda: None, "space": SimpleNamespace(x=1), "set": {3, 1, 2}}

    assert config_digest(config()) == config_digest(config())


def test_values_that_are_not_plain_count_by_what_they_say() -> None:
    assert config_digest({"colour": Colour.RED}) != config_digest({"colour": Colour.BLUE})


@pytest.mark.parametrize(
    "value", [float("nan"), 2**200, "\ud800", "", None, [], {}, [[[]]], {1: {2: 3}}, b"bytes", (1, 2)]
)
def test_any_value_has_a_digest(value: object) -> None:
    assert len(config_digest({"field": value})) == 64


def test_a_configuration_that_contains_itself_has_one_too() -> None:
    endless: dict[str, object] = {"a": 1}
    endless["self"] = endless
    assert len(config_digest(endless)) == 64
    assert positions_fact(dataclasses.replace(ENGINE, model=endless)) == "any"
