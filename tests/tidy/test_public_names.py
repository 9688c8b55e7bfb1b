"""What `import kvist` offers is listed once, exists, explains itself, is tested and has its place in the reference."""

import importlib.metadata
import inspect
import re
from collections.abc import Mapping

import kvist

HERE = "tests/tidy/test_public_names.py"


def wrong_names(namespace: Mapping[str, object], tests: str, reference: str) -> list[str]:
    """Complains of public names that are unsorted, absent, unexplained, untested or not in the reference."""
    listed = namespace["__all__"]
    assert isinstance(listed, list)
    complaints = [] if listed == sorted(listed) else ["__all__ is not in alphabetical order"]
    for name in listed:
        value = namespace.get(name)
        if name not in namespace:
            complaints.append(f"{name} does not exist")
        elif (inspect.isclass(value) or inspect.isroutine(value)) and not inspect.getdoc(value):
            complaints.append(f"{name} has no docstring")
        word = rf"\b{re.escape(name)}\b"
        complaints += [] if re.search(word, tests) else [f"no test names {name}"]
        complaints += [] if re.search(word, reference) else [f"docs/reference does not name {name}"]
    return complaints


def test_the_public_names_are_whole(text_files: dict[str, str]) -> None:
    tests = "\n".join(text for name, text in text_files.items() if name.startswith("tests/") and name != HERE)
    reference = "\n".join(text for name, text in text_files.items() if name.startswith("docs/reference/"))
    assert wrong_names(vars(kvist), tests, reference) == []


def test_every_fault_of_a_public_name_is_seen() -> None:
    def plain() -> None: ...

    def told() -> None:
        """Says so."""

    assert wrong_names({"__all__": ["told"], "told": told}, "told()", "`told`") == []
    assert wrong_names({"__all__": ["told"], "told": told}, "untold()", "") == [
        "no test names told",
        "docs/reference does not name told",
    ]
    assert wrong_names({"__all__": ["plain"], "plain": plain}, "plain", "plain") == ["plain has no docstring"]
    assert wrong_names({"__all__": ["gone"]}, "gone", "gone") == ["gone does not exist"]
    assert len(wrong_names({"__all__": ["told", "a"], "told": told, "a": 1}, "told a", "told a")) == 1


def test_the_version_installed_is_the_version_in_the_source() -> None:
    assert importlib.metadata.version("kvist") == kvist.__version__
