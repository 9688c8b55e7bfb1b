"""The accelerators of the catalogue, by name, as machines to plan for.

What is in the file is checked as a user's file would be. A test holds every figure to a source.
"""

from typing import Annotated

from pydantic import BeforeValidator, Field, TypeAdapter

from kvist.app.catalogue_data import Entry, tables, unknown
from kvist.base.units import Bytes, parse_bytes
from kvist.planner.memory import Machine

_FILE = "accelerators.toml"
_TERA = 1e12


def _size(value: object) -> object:
    return parse_bytes(value) if isinstance(value, str) else value


Size = Annotated[int, BeforeValidator(_size), Field(gt=0)]
Teraflops = Annotated[float, Field(gt=0)]


class Accelerator(Entry):
    """One entry of the file, which says what each field means.

    Attributes:
        memory: in bytes.
        bandwidth, host_link: in bytes per second.
        bf16_tflops, fp8_tflops: dense, in 10^12 floating-point operations per second.
    """

    memory: Size
    bandwidth: Size
    bf16_tflops: Teraflops
    fp8_tflops: Teraflops | None = None
    host_link: Size

    def machine(self, name: str) -> Machine:
        """The same for the planner."""
        return Machine(
            name=name,
            bytes_total=Bytes(self.memory),
            bytes_per_s=float(self.bandwidth),
            flops_bf16=self.bf16_tflops * _TERA,
            flops_fp8=None if self.fp8_tflops is None else self.fp8_tflops * _TERA,
            host_link_bytes_per_s=float(self.host_link),
        )


def accelerators() -> dict[str, Accelerator]:
    """All of them, by name."""
    return TypeAdapter(dict[str, Accelerator]).validate_python(tables(_FILE))


def accelerator(name: str) -> Machine:
    """The accelerator of this name; capitals, and blanks or underscores for hyphens, make no difference.

    Raises:
        ConfigError: there is none; the message lists those that there are.
    """
    known = accelerators()
    plain = "-".join(name.lower().replace("_", " ").split())
    if plain not in known:
        raise unknown("GPU", name, list(known), "give --gpu-memory for another one")
    return known[plain].machine(plain)
