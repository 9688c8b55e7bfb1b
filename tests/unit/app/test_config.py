"""Every flag of `kvist serve`, given what no one should give it: one clear error that names the flag, or a setting."""

import pytest

from kvist.app.config import ServeConfig, read_config
from kvist.base.errors import ConfigError
from kvist.cli.main import build_parser
from kvist.cli.serve import settings

TEXTS = ("model", "host", "served_model_name", "cache_secret_file")
SIZES = ("kv_memory", "staging_memory")
COUNTS = (
    "port",
    "threads",
    "block_tokens",
    "step_tokens",
    "sequences_max",
    "waiting_max",
    "model_tokens_max",
    "prompt_tokens_max",
    "output_tokens_max",
    "window_checkpoint_tokens",
)
NUMBERS = ("kv_memory_fraction", "overcommit", "drain_seconds", "cache_ttl_seconds")
CHOICES = {"dtype": "bfloat16", "device": "cuda", "load_when": "always"}
"""With one that is allowed and no default of another."""

NO_NUMBER = ["", " ", "nan", "NaN", "inf", "-inf", "x", "1,5", "0x10", "१६", "1;2", "\x00", "9" * 5000, [], {}, [1]]
NO_COUNT = [*NO_NUMBER, "-1", "1.5", "9" * 30, 2**40, float("nan"), 1.5]


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_refused(name: str, value: object) -> str:
    """The one error about a setting: it names the flag, shows the value, and is short."""
    with pytest.raises(ConfigError) as caught:
        read_config({name: value})
    message = str(caught.value)
    assert message.startswith(f"{flag(name)} "), message
    assert len(message) < 200
    assert "\n" not in message
    assert repr(value)[:30] in message
    return message


def test_every_flag_is_a_setting_and_every_setting_a_flag() -> None:
    switches = {name for name, field in ServeConfig.model_fields.items() if field.annotation is bool}
    given = settings(build_parser().parse_args(["serve"]))
    # Tiers are given one by one and read into one setting; a file is none itself.
    assert set(given) - {"tier", "config"} == set(ServeConfig.model_fields) - {"tiers"}
    assert {*TEXTS, *COUNTS, *NUMBERS, *CHOICES, *SIZES} == set(given) - switches - {"tier", "config"}


def test_nothing_given_is_what_help_says() -> None:
    config = read_config(settings(build_parser().parse_args(["serve"])))
    assert config == ServeConfig()
    assert (config.model, config.host, config.port) == ("smollm2", "127.0.0.1", 8000)
    assert config.kv_memory is config.kv_memory_fraction is None


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", NO_COUNT, ids=lambda value: repr(value)[:12])
def test_what_is_no_count_is_refused(name: str, value: object) -> None:
    check_refused(name, value)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value", [*NO_NUMBER, "-1", -0.5, float("nan"), float("inf")], ids=lambda each: repr(each)[:12]
)
def test_what_is_no_number_is_refused(name: str, value: object) -> None:
    check_refused(name, value)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", ["", "x" * 5000, 3, [], b"\xff", "\ud800"], ids=lambda value: repr(value)[:12])
def test_what_is_no_name_is_refused(name: str, value: object) -> None:
    check_refused(name, value)


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("value", ["", "float64", "CPU", "BFLOAT16", "cuda:0", "cpu ", 3, None, ["cpu"]])
def test_what_is_no_choice_is_refused_with_the_choices(name: str, value: object) -> None:
    if value is None:
        assert getattr(read_config({name: value}), name) in {"bfloat16", "cpu", "cheaper"}
        return
    assert CHOICES[name] in check_refused(name, value)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(
    "value", ["", "0", "-1GiB", "nan", "1e3GiB", "two", "2 Gibibytes", "GiB", "\x00", "9" * 5000, "0.1B"]
)
def test_what_is_no_size_is_refused(name: str, value: str) -> None:
    assert "is not a size" in check_refused(name, value)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, -5, 1.5, [], {}])
def test_a_size_in_another_type_is_refused_too(name: str, value: object) -> None:
    check_refused(name, value)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("port", -1, 65536),
        ("threads", 0, 1025),
        ("block_tokens", 0, 1025),
        ("step_tokens", 0, 2**31),
        ("sequences_max", 0, 65537),
        ("waiting_max", 0, 2**20 + 1),
        ("model_tokens_max", 1, 2**31),
        ("prompt_tokens_max", 0, 2**31),
        ("output_tokens_max", 0, 2**31),
        ("window_checkpoint_tokens", 0, 2**31),
        ("drain_seconds", -1, 86401),
        ("overcommit", 0, 1001),
        ("kv_memory_fraction", 0, 2),
        ("cache_ttl_seconds", 0, 10_000_000_001),
    ],
)
def test_bounds_are_kept_to_the_last_number_within(name: str, low: int, high: int) -> None:
    check_refused(name, str(low))
    check_refused(name, str(high))
    for inside in (low + 1, high - 1):
        assert getattr(read_config({name: str(inside)}), name) == inside


def test_sizes_are_read_with_their_units() -> None:
    assert read_config({"kv_memory": "1.5GiB"}).kv_memory == 3 * 2**29
    assert read_config({"kv_memory": " 2 MB "}).kv_memory == 2_000_000
    assert read_config({"kv_memory": 12345}).kv_memory == 12345
    assert read_config({"kv_memory": "999999999999TiB"}).kv_memory == 999_999_999_999 * 2**40


@pytest.mark.parametrize("fraction", ["0.5", "nan", ""])
def test_two_ways_to_say_one_thing_are_refused_whatever_they_say(fraction: str) -> None:
    with pytest.raises(ConfigError, match=r"--kv-memory and --kv-memory-fraction both say .* give one of them"):
        read_config({"kv_memory": "2GiB", "kv_memory_fraction": fraction})


def test_a_setting_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="--nonsense: there is no such setting"):
        read_config({"nonsense": "1"})


def test_of_several_mistakes_one_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        read_config({"port": "x", "host": "", "dtype": "y"})
    assert str(caught.value).count("--") == 1


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        ServeConfig().port = 1
