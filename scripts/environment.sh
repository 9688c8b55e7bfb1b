# The virtual environment that the scripts share: made when missing, brought up to date when what it is made from changed.
#
# Sourced, never run. Gives: $root (the repository), $python (the environment's interpreter), and the functions below.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
python=$venv/bin/python

# Settings of a caller's own Python have no business in here.
unset PYTHONHOME PYTHONPATH
export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_REQUIRE_VIRTUALENV=1 PIP_USER=0

fail() {
    printf 'kvist: %s\n' "$1" >&2
    exit "${2:-1}"
}

# Prints the first interpreter that is new enough; $PYTHON goes before all others.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.11 python3.12 python3.13 python3.14 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v -- "$candidate"
            return
        fi
    done
    fail "needs Python 3.11 or newer and found none; install it, or name it: PYTHON=/path/to/python3.11 $0" 3
}

# An environment remembers where it was made; one that was moved or copied here, or whose Python is gone, is no use.
venv_is_sound() {
    [ -x "$python" ] && grep -qF -- "$venv" "$venv/bin/activate" 2>/dev/null && "$python" -c 'import pip' 2>/dev/null
}

make_venv() {
    local base
    base=$(find_python)
    "$base" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$base lacks the venv module; install it (on Debian and Ubuntu: apt-get install python3-venv)" 3
    echo "Making a virtual environment in $venv with $("$base" --version)"
    "$base" -m venv --clear "$venv" || fail "could not make $venv" 3
}

# What an installation depends on, as one line.
fingerprint() {
    "$python" - "$root/pyproject.toml" "$root/constraints.txt" <<'PROGRAM'
import hashlib, pathlib, sys
digests = [hashlib.sha256(pathlib.Path(name).read_bytes()).hexdigest() for name in sys.argv[1:]]
print(sys.version.split()[0], *digests)
PROGRAM
}

# install EXTRA: Kvist itself, editable, with the extra's packages; nothing to do when that was done already.
# The extra "dev" includes "engine", so it leaves both stamps.
install() {
    local extra=$1 stamp=$venv/.kvist-$1 wanted progress=--quiet
    wanted=$(fingerprint)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    if [ -t 1 ]; then progress=--progress-bar=on; fi
    echo "Installing kvist[$extra] into $venv (a few hundred megabytes the first time)"
    rm -f -- "$venv"/.kvist-*
    "$python" -m pip install "$progress" --no-input --constraint "$root/constraints.txt" --editable "$root[$extra]" ||
        fail "could not install kvist[$extra]; what pip said is above" 4
    echo "$wanted" >"$stamp"
    if [ "$extra" = dev ]; then cp -- "$stamp" "$venv/.kvist-engine"; fi
}

# environment EXTRA: the one thing that the scripts ask for.
environment() {
    venv_is_sound || make_venv
    install "$1"
}

# program NAME PACKAGE: a program that the tests run; installed where root asks on a Debian, named with its remedy elsewhere.
program() {
    if ! command -v -- "$1" >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing $2"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$2" >/dev/null ||
            echo "kvist: apt-get could not install $2; what it said is above" >&2
    fi
    command -v -- "$1" >/dev/null ||
        fail "$1 is missing, which the tests run; install it (on Debian and Ubuntu: apt-get install $2)" 3
}
