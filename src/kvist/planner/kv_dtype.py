"""How many bytes the keys and values of one token take, with the scales that quantised ones need.

Knows number formats by the names that `--kv-cache-dtype` of vLLM has, and a few that only papers have. Knows single
layers: what a model, a block or a request takes is arithmetic over these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from kvist.base.errors import ConfigError
from kvist.base.units import Bytes
from kvist.geometry.groups import DTYPE_BYTES, Dtype, token_bytes
from kvist.geometry.layers import AttentionLayer, KvLayer, LatentLayer, RecurrentLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class KvDtype:
    """A number format of keys and values.

    Attributes:
        name: as it is asked for.
        bits: of one number.
        scale_bits: of the scale, and of the zero point where there is one, that a group of numbers shares.
        group: numbers of one head vector that share a scale; None: all of them do.
        latent_scales: scales of a latent vector where `group` is None: its kernels keep two.
        rope_bits: of a number of a latent layer's rotated key, which then has no scales; None: as all others, and
            the format is for attention too.
    """

    name: str
    bits: int
    scale_bits: int = 0
    group: int | None = None
    latent_scales: int = 1
    rope_bits: int | None = None

    @property
    def for_attention(self) -> bool:
        """Whether keys and values can have it."""
        return self.rope_bits is None

    @property
    def for_latents(self) -> bool:
        """Whether latent vectors can have it: in one piece with the rotated key, or with a format for that."""
        return self.group is None or self.rope_bits is not None

    def vector_bytes(self, numbers: int) -> Bytes:
        """Bytes of one vector, of one head and token, with its scales; vectors begin at whole bytes.

        >>> kv_dtype("int8_per_token_head").vector_bytes(128), kv_dtype("nvfp4").vector_bytes(128)
        (132, 72)
        """
        groups = 1 if self.group is None else -(-numbers // self.group)
        return Bytes(-(-(numbers * self.bits + groups * self.scale_bits) // 8))

    def token_bytes(self, layer: KvLayer) -> Bytes:
        """Bytes that one token takes in one layer, whatever its window; 0 where nothing grows with tokens.

        Raises:
            ConfigError: the format is not for such a layer.
        """
        match layer:
            case AttentionLayer():
                if not self.for_attention:
                    fitting = ", ".join(each.name for each in KV_DTYPES.values() if each.for_attention)
                    raise ConfigError(f"KV dtype {self.name} is for latent attention (MLA) only; use one of {fitting}")
                return token_bytes(
                    kv_heads=layer.kv_heads,
                    head_dim_k=layer.head_dim_k,
                    head_dim_v=layer.head_dim_v,
                    vector_bytes=self.vector_bytes,
                )
            case LatentLayer():
                return self._latent_bytes(layer)
            case _:
                return Bytes(0)

    def _latent_bytes(self, layer: LatentLayer) -> Bytes:
        if self.rope_bits is not None:
            return Bytes(self.vector_bytes(layer.latent) + -(-layer.rope * self.rope_bits // 8))
        if not self.for_latents:
            fitting = ", ".join(each.name for each in KV_DTYPES.values() if each.for_latents)
            raise ConfigError(f"KV dtype {self.name} is not for latent attention (MLA); use one of {fitting}")
        more = (self.latent_scales - 1) * self.scale_bits
        return Bytes(self.vector_bytes(layer.latent + layer.rope) + more // 8)


def _plain(*names: str, bits: int) -> tuple[KvDtype, ...]:
    return tuple(KvDtype(name=name, bits=bits) for name in names)


def _per_token_head(name: str, bits: int) -> KvDtype:
    return KvDtype(name=name, bits=bits, scale_bits=32, latent_scales=2)


KV_DTYPES: Mapping[str, KvDtype] = MappingProxyType(
    {
        each.name: each
        for each in (
            *_plain("float32", bits=32),
            *_plain("bfloat16", "float16", bits=16),
            *_plain("fp8", "fp8_e4m3", "fp8_e5m2", bits=8),
            _per_token_head("int8_per_token_head", 8),
            _per_token_head("fp8_per_token_head", 8),
            _per_token_head("int4_per_token_head", 4),
            KvDtype(name="nvfp4", bits=4, scale_bits=8, group=16),
            KvDtype(name="fp8_ds_mla", bits=8, scale_bits=32, group=128, rope_bits=16),
            KvDtype(name="nvfp4_ds_mla", bits=4, scale_bits=8, group=16, rope_bits=8),
            # Of papers; a scale and a zero point of 16 bits each.
            KvDtype(name="int4_g64", bits=4, scale_bits=32, group=64),
            KvDtype(name="int4_g32", bits=4, scale_bits=32, group=32),
            KvDtype(name="kivi2_g32", bits=2, scale_bits=32, group=32),
        )
    }
)
"""Those that can be planned with, by name."""

NOT_IN_VLLM = frozenset({"float32", "int4_g64", "int4_g32", "kivi2_g32"})
"""Formats that vLLM has no flag for; float32 it has for models whose own dtype that is."""


_OF_SPARSE_LATENTS = frozenset({"fp8_ds_mla", "nvfp4_ds_mla"})
"""Read by sparse attention only, which no family has that is known here."""

_NVFP4_HEAD_DIMS = frozenset({128, 256, 512})
"""Of 64 only one generation of GPUs reads it, and of no other size does any."""


def vllm_has_kernels(dtype: KvDtype, layers: Sequence[KvLayer]) -> bool:
    """Whether attention kernels of vLLM 0.32 and 0.33 read such KV; with other formats it does not start."""
    if any(isinstance(layer, LatentLayer) for layer in layers):
        per_head = dtype.scale_bits and dtype.rope_bits is None
        return not per_head and dtype.name not in _OF_SPARSE_LATENTS
    if dtype.name != "nvfp4":
        return True
    dims = {
        dim for layer in layers if isinstance(layer, AttentionLayer) for dim in (layer.head_dim_k, layer.head_dim_v)
    }
    return dims <= _NVFP4_HEAD_DIMS


def kv_dtype(name: str) -> KvDtype:
    """The format of this name.

    Raises:
        ConfigError: there is none, or it is "auto", which is the model's own and has to be looked up there.
    """
    found = KV_DTYPES.get(name)
    if found is None:
        raise ConfigError(f"KV dtype {name[:40]!r} is not known; it is one of {', '.join(KV_DTYPES)}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormat:
    """Number formats of all that layers keep.

    Attributes:
        kv: of keys, values and latent vectors.
        conv: of the states of convolutions.
        ssm: of the other recurrent states, which are often kept in float32.
    """

    kv: KvDtype
    conv: Dtype = "bfloat16"
    ssm: Dtype = "bfloat16"

    def token_bytes(self, layer: KvLayer) -> Bytes:
        """See `KvDtype.token_bytes`."""
        return self.kv.token_bytes(layer)

    def state_bytes(self, layer: KvLayer) -> Bytes:
        """Bytes of a recurrent layer's state of one sequence; 0 for other layers."""
        if not isinstance(layer, RecurrentLayer):
            return Bytes(0)
        kinds = {"conv": DTYPE_BYTES[self.conv], "ssm": DTYPE_BYTES[self.ssm]}
        return Bytes(sum(prod(tensor.shape) * kinds[tensor.name] for tensor in layer.tensors))
