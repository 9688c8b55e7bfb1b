"""How many heads a model has and how large they are, where its configuration says so and where it does not."""

from dataclasses import dataclass

from kvist.base.errors import ModelError
from kvist.geometry.fields import Fields

# Far beyond any model there is, and small enough that what is computed from a wrong file stays harmless.
HIDDEN_MAX = 2**24
_HEADS_MAX, _HEAD_DIM_MAX = 65_536, 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRules:
    """What a family of models leaves unsaid about its heads.

    Attributes:
        kv_heads_default: key/value heads when the field is absent; None: one per query head.
        kv_heads_nullable: whether null means one per query head.
        head_dim_default: head size when the field is absent; None: hidden size by query heads.
        head_dim_nullable: whether null means hidden size by query heads.
        heads_divide_hidden: whether the hidden size must be a multiple of the query heads though the head
            size is given apart.
    """

    kv_heads_default: int | None = None
    kv_heads_nullable: bool = True
    head_dim_default: int | None = None
    head_dim_nullable: bool = False
    heads_divide_hidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The heads of every attention layer of a model.

    Attributes:
        query: query heads.
        kv: key/value heads; each serves as many query heads as every other.
        dim: numbers per head.
    """

    query: int
    kv: int
    dim: int


def read_heads(fields: Fields, rules: HeadRules) -> Heads:
    """Reads a model's heads.

    Raises:
        ModelError: a field is missing, of the wrong type, out of range or at odds with another.
    """
    query = fields.integer("num_attention_heads", most=_HEADS_MAX)
    return Heads(query=query, kv=_kv_heads(fields, rules, query), dim=_head_dim(fields, rules, query))


def _kv_heads(fields: Fields, rules: HeadRules, query: int) -> int:
    key = "num_key_value_heads"
    if rules.kv_heads_nullable and fields.is_null(key):
        return query
    kv = fields.integer(key, default=rules.kv_heads_default or query, most=_HEADS_MAX)
    if query % kv:
        raise ModelError(
            f"{fields.source}: {fields.name('num_attention_heads')} {query} is not a multiple of"
            f" {fields.name(key)} {kv}"
        )
    return kv


def _head_dim(fields: Fields, rules: HeadRules, query: int) -> int:
    hidden = fields.integer("hidden_size", most=HIDDEN_MAX)
    is_null = rules.head_dim_nullable and fields.is_null("head_dim")
    derived = is_null or (rules.head_dim_default is None and not fields.has("head_dim"))
    if hidden % query and (derived or rules.heads_divide_hidden):
        raise ModelError(
            f"{fields.source}: {fields.name('hidden_size')} {hidden} is not a multiple of"
            f" {fields.name('num_attention_heads')} {query}"
        )
    if derived:
        return hidden // query
    return fields.integer("head_dim", default=rules.head_dim_default, most=_HEAD_DIM_MAX)
