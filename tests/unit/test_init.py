"""The package says which version it is, in the form that packages are compared by, without loading anything."""

import re
import subprocess
import sys

import kvist


def test_the_version_is_three_numbers() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", kvist.__version__)


def test_importing_the_package_loads_no_other_part_of_it_and_no_tensor_library() -> None:
    program = "import sys, kvist; print(*sorted({name.split('.')[0] for name in sys.modules}), sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "kvist" in loaded
    assert {"torch", "transformers", "numpy", "fastapi", "pydantic", "rich"}.isdisjoint(loaded)
