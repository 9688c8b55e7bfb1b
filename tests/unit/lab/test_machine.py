import re
import shutil
import subprocess
from pathlib import Path

import kvist
from kvist.lab.machine import describe_machine, git_commit


def test_a_machine_has_a_name_cores_and_memory() -> None:
    machine = describe_machine()
    assert machine.cpu_model
    assert 1 <= machine.cores_usable <= machine.cores
    assert machine.memory_bytes > 2**20
    assert re.match(r"3\.\d+", machine.python)


def test_the_commit_is_that_of_the_checkout_that_holds_the_package() -> None:
    git, package = shutil.which("git"), Path(kvist.__file__).parent
    asked = [git or "false", "-C", str(package), "rev-parse", "--show-toplevel", "HEAD"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    in_checkout = len(answer) == 2 and Path(answer[0]).resolve() / "src" / "kvist" == package.resolve()
    found = git_commit()
    assert (found is not None) == in_checkout
    if found is not None:
        assert found.removesuffix("-dirty") == answer[1]
