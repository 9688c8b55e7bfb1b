"""Whether the vLLM of this environment is one that Kvist knows, asked in a process of its own.

Importing vLLM takes many seconds, writes to the terminal, and fails in many ways where the installation is damaged;
all of that stays in the other process.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvist.app.doctor_findings import Finding, note, ok, problem, shown
from kvist.base.errors import ConfigError

CHECK = "vllm"
_MARK = "kvist-doctor:"
_MODULE = "kvist.app.doctor_release"
_SECONDS = 300.0
_WANTED = (f"{sys.executable}", "-m", _MODULE)


class Said(NamedTuple):
    """What a command came to.

    Attributes:
        status: its exit status; None: it did not end in time.
        output: lines on standard output and standard error, those of the latter last.
    """

    status: int | None
    output: Sequence[str]


def release_findings(run: Callable[[Sequence[str], float], Said], *, is_there: bool) -> list[Finding]:
    """Looks at the vLLM of this environment.

    Args:
        run: runs a command for at most so many seconds.
        is_there: whether there is a package vllm.
    """
    if not is_there:
        text = f"vLLM is not installed where {sys.executable} looks, so its release was not checked"
        return [note(CHECK, text, "run kvist doctor in vLLM's own environment as well")]
    said = run(_WANTED, _SECONDS)
    if said.status is None:
        return [
            problem(CHECK, f"importing vLLM took more than {_SECONDS:g} s", "see what python -c 'import vllm' does")
        ]
    answer = next((line.removeprefix(_MARK) for line in said.output if line.startswith(_MARK)), None)
    if said.status or answer is None:
        last = next((line for line in reversed(said.output) if line.strip()), "nothing")
        remedy = "see what python -c 'import kvist.app.vllm' says, and mend the installation"
        return [problem(CHECK, f"vLLM cannot be used from here; it said: {shown(last.strip(), 400)}", remedy)]
    version, complaint = json.loads(answer)
    if complaint:
        return [problem(CHECK, complaint, "install a release of vLLM that is listed, or a Kvist that lists this one")]
    return [ok(CHECK, f"vLLM {version} is a release that Kvist knows, and has the signatures of it")]


def is_vllm_there() -> bool:
    """Whether this environment has vLLM; does not import it."""
    return importlib.util.find_spec("vllm") is not None


def run_command(command: Sequence[str], seconds: float) -> Said:
    """Runs a command and waits for it."""
    try:
        done = subprocess.run(  # noqa: S603 - no shell; this interpreter and a module of ours
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Said(None, ())
    return Said(done.returncode, (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace").splitlines())


def _tell() -> None:
    """Imports vLLM, and writes its version and what is wrong with it, as JSON after a mark.

    Whatever importing raises ends this process, whose last line then says it.
    """
    # Late: the doctor itself must not import them.
    import vllm  # noqa: PLC0415
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA  # noqa: PLC0415

    from kvist.connectors.vllm.versions import check_release  # noqa: PLC0415

    complaint = ""
    try:
        check_release(vllm.__version__, KVConnectorBase_V1, SupportsHMA)
    except ConfigError as error:
        complaint = str(error)
    else:
        from kvist.app.vllm import KvistConnector  # noqa: PLC0415  only a release that fits lets it be imported

        if missing := sorted(getattr(KvistConnector, "__abstractmethods__", ())):
            complaint = f"vLLM {vllm.__version__} asks for methods that Kvist does not have: {', '.join(missing)}"
    sys.stdout.write(f"\n{_MARK}{json.dumps([vllm.__version__, complaint])}\n")


if __name__ == "__main__":
    _tell()
