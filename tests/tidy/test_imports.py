"""No source file is dead: each is imported by another one, or is where a command starts."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest


def module_of(name: str) -> str:
    """The dotted name of a source file."""
    return name.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_of(text: str) -> Iterator[str]:
    """Each module that a file may import, wherever in the file and under whatever condition."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def entry_points(pyproject: str) -> set[str]:
    """Modules that a command of the package starts."""
    scripts = tomllib.loads(pyproject)["project"].get("scripts", {})
    return {target.partition(":")[0] for target in scripts.values()}


def orphans(sources: dict[str, str], started: set[str]) -> list[str]:
    """Source files that no other one imports and no command starts; packages themselves excepted."""
    modules = {module_of(name): name for name in sources if not name.endswith(("/__init__.py", "/__main__.py"))}
    used = {used for name, text in sources.items() for used in imports_of(text) if used != module_of(name)}
    return [name for module, name in modules.items() if module not in used | started]


def test_every_source_file_is_used(sources: dict[str, str], root: Path) -> None:
    started = entry_points((root / "pyproject.toml").read_text(encoding="utf-8"))
    dead = orphans(sources, started)
    if dead:
        pytest.fail("imported by nothing: " + ", ".join(dead), pytrace=False)


def test_a_file_that_nothing_imports_is_seen() -> None:
    sources = {
        "src/kvist/a/__init__.py": "",
        "src/kvist/a/used.py": "",
        "src/kvist/a/late.py": "",
        "src/kvist/a/dead.py": "import kvist.a.dead",
        "src/kvist/cli/main.py": "from kvist.a import used\ndef f():\n    from kvist.a.late import g",
    }
    assert orphans(sources, {"kvist.cli.main"}) == ["src/kvist/a/dead.py"]
    assert orphans(sources, set()) == ["src/kvist/a/dead.py", "src/kvist/cli/main.py"]


def test_entry_points_are_the_modules_that_commands_start() -> None:
    assert entry_points('[project.scripts]\nkvist = "kvist.cli.main:main"') == {"kvist.cli.main"}
    assert entry_points("[project]\nname = 'x'") == set()


def test_a_file_is_named_as_it_is_imported() -> None:
    assert module_of("src/kvist/base/units.py") == "kvist.base.units"
    assert module_of("src/kvist/base/__init__.py") == "kvist.base"
