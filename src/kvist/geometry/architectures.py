"""The architectures Kvist serves, and what each leaves unsaid in its configuration.

The defaults are those of the configuration classes of transformers, because that is what builds the model. An
architecture belongs here once it passes the engine's exactness test; anything else is refused with this list.
`Gemma3ForConditionalGeneration`, the multimodal wrapping of Gemma 3, is refused too: its images take part in the
attention mask, and its text configuration leaves out most of its fields. The text models are `Gemma3ForCausalLM`.
"""

from dataclasses import dataclass

from kvist.base.errors import ModelError
from kvist.geometry import windows
from kvist.geometry.fields import Fields, show
from kvist.geometry.heads import HeadRules

RopeType = str

_COMMON_ROPE = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What one architecture's configuration means.

    Attributes:
        name: the class of the model, as `architectures` in its configuration names it.
        model_type: the same thing as `model_type` names it.
        window_rule: which layers slide, and how far they see.
        head_rules: how many heads of which size there are where that is left unsaid.
        rope_types: ways of scaling rotary positions that the model has code for.
        theta_default: base of the rotary frequencies when absent.
        theta_sliding_default: the same for sliding layers, where these have rotary parameters of their own.
        rotates_in_part: whether `partial_rotary_factor` is obeyed.
        leaves_layers_unrotated: whether some layers have no rotary positions at all.
    """

    name: str
    model_type: str
    window_rule: windows.WindowRule
    head_rules: HeadRules
    rope_types: tuple[RopeType, ...] = _COMMON_ROPE
    theta_default: float = 10_000.0
    theta_sliding_default: float | None = None
    rotates_in_part: bool = False
    leaves_layers_unrotated: bool = False


SUPPORTED = (
    Architecture(
        name="LlamaForCausalLM",
        model_type="llama",
        window_rule=windows.never,
        head_rules=HeadRules(head_dim_nullable=True, heads_divide_hidden=True),
    ),
    Architecture(
        name="MistralForCausalLM",
        model_type="mistral",
        window_rule=windows.everywhere(4096),
        head_rules=HeadRules(kv_heads_default=8, kv_heads_nullable=False, head_dim_nullable=True),
    ),
    Architecture(
        name="Qwen2ForCausalLM",
        model_type="qwen2",
        window_rule=windows.from_some_layer_on,
        head_rules=HeadRules(kv_heads_default=32),
    ),
    Architecture(
        name="Qwen3ForCausalLM",
        model_type="qwen3",
        window_rule=windows.from_some_layer_on,
        head_rules=HeadRules(kv_heads_default=32, head_dim_default=128),
    ),
    Architecture(
        name="Gemma2ForCausalLM",
        model_type="gemma2",
        window_rule=windows.every_other_layer,
        head_rules=HeadRules(
            kv_heads_default=4, kv_heads_nullable=False, head_dim_default=256, heads_divide_hidden=True
        ),
    ),
    Architecture(
        name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        window_rule=windows.all_but_every_nth,
        head_rules=HeadRules(
            kv_heads_default=4, kv_heads_nullable=False, head_dim_default=256, heads_divide_hidden=True
        ),
        theta_default=1_000_000.0,
        theta_sliding_default=10_000.0,
    ),
    Architecture(
        name="Phi3ForCausalLM",
        model_type="phi3",
        window_rule=windows.everywhere(None),
        head_rules=HeadRules(),
        rope_types=("default", "longrope"),
        rotates_in_part=True,
    ),
    Architecture(
        name="SmolLM3ForCausalLM",
        model_type="smollm3",
        window_rule=windows.where_nothing_rotates,
        head_rules=HeadRules(kv_heads_default=4),
        theta_default=2_000_000.0,
        leaves_layers_unrotated=True,
    ),
)


def find_architecture(fields: Fields) -> Architecture:
    """The architecture that a configuration names with `model_type`, and with `architectures` if it has that.

    Raises:
        ModelError: it names none, one that is not supported, or two different ones.
    """
    named = _named_class(fields)
    if named is not None and named not in {known.name for known in SUPPORTED}:
        raise _unsupported(fields, "architectures", named)
    fields.require(["model_type"], "every model")
    model_type = fields.text("model_type")
    found = next((known for known in SUPPORTED if known.model_type == model_type), None)
    if found is None:
        raise _unsupported(fields, "model_type", model_type)
    if named is not None and named != found.name:
        raise ModelError(
            f"{fields.source}: {fields.name('architectures')} names {named}, but {fields.name('model_type')}"
            f" {model_type!r} means {found.name}; make them agree"
        )
    return found


def _named_class(fields: Fields) -> str | None:
    if not fields.is_set("architectures"):
        return None
    names = fields.items("architectures")
    if len(names) != 1 or not isinstance(names[0], str):
        raise fields.fail("architectures", "a list with the name of one model class")
    return names[0]


def _unsupported(fields: Fields, key: str, name: str) -> ModelError:
    known = ", ".join(f"{each.name} ({each.model_type})" for each in SUPPORTED)
    return ModelError(f"{fields.source}: {fields.name(key)} {show(name)} is not supported; supported are {known}")
