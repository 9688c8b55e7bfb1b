"""Every Protocol has a contract suite in tests/contract that names the Protocol and each implementation.

An implementation is a class that says so in its bases, or that has all of a Protocol's members with the
same parameters: what a type checker would accept, as far as names tell.
"""

import ast
import re
from collections.abc import Iterator

import pytest

Members = dict[str, tuple[str, ...]]
"""Name of each public member, with the names of its parameters; attributes and properties have none."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def classes_of(texts: dict[str, str]) -> dict[str, ast.ClassDef]:
    """The classes of some files, by name."""
    nodes = (node for text in texts.values() for node in ast.walk(ast.parse(text)))
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def bases_of(node: ast.ClassDef) -> list[str]:
    """Names of a class's bases, without modules and type parameters."""
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return [base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in bases]


def own_members(node: ast.ClassDef) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Members that a class gives itself, attributes set in its methods included."""
    for each in node.body:
        if isinstance(each, Function):
            arguments = [*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]
            yield each.name, tuple(argument.arg for argument in arguments)[1:]
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id, ()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner.attr, ()


def members(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Members:
    """Public members of a class and of those bases that are ours; a call counts as one."""
    found: Members = {}
    for base in bases_of(node):
        if base in classes and classes[base] is not node:
            found |= members(classes[base], classes)
    own = dict(reversed(list(own_members(node))))
    return found | {name: own[name] for name in own if name == "__call__" or not name.startswith("_")}


def protocols(classes: dict[str, ast.ClassDef]) -> dict[str, Members]:
    """The Protocols among some classes, with their members."""
    return {name: members(node, classes) for name, node in classes.items() if "Protocol" in bases_of(node)}


def implementations(protocol: str, classes: dict[str, ast.ClassDef]) -> list[str]:
    """Classes that implement a Protocol, by declaration or by shape."""
    known = protocols(classes)
    asked = known[protocol].items()
    return [
        name
        for name, node in classes.items()
        if name not in known and (protocol in bases_of(node) or (asked and asked <= members(node, classes).items()))
    ]


def unproven(sources: dict[str, str], suites: dict[str, str]) -> list[str]:
    """Complains of Protocols without a suite and of implementations that their suite does not run."""
    classes = classes_of(sources)
    words = [set(re.findall(r"\w+", text)) for text in suites.values()]
    complaints = []
    for protocol in protocols(classes):
        named = set().union(*(found for found in words if protocol in found))
        if not named:
            complaints.append(f"{protocol}: no suite in tests/contract names it")
            continue
        missing = [name for name in implementations(protocol, classes) if name not in named]
        complaints += [f"{protocol}: its suite does not run {name}" for name in missing]
    return complaints


def test_every_protocol_is_proven_over_every_implementation(
    sources: dict[str, str], text_files: dict[str, str]
) -> None:
    suites = {name: text for name, text in text_files.items() if name.startswith("tests/contract/test_")}
    complaints = unproven(sources, suites)
    if complaints:
        pytest.fail("\n".join(complaints), pytrace=False)


SHELF = """
class Shelf(Protocol[T]):
    @property
    def size(self) -> int: ...
    def put(self, key: str, *, value: int) -> None: ...
"""
WOODEN = """
class Wooden:
    def __init__(self): self.size = 3
    def put(self, key, *, value): ...
"""
DECLARED = "class Glass(Shelf):\n    pass\n"
DERIVED = "class Oak(Wooden):\n    def polish(self): ...\n"


def test_a_protocol_without_a_suite_is_seen() -> None:
    assert unproven({"a.py": SHELF}, {}) == ["Shelf: no suite in tests/contract names it"]
    assert unproven({"a.py": SHELF}, {"test_shelf.py": "class TestShelves: ..."}) != []
    assert unproven({"a.py": SHELF}, {"test_shelf.py": "from a import Shelf"}) == []
    assert unproven({"a.py": "class Plain: ..."}, {}) == []


def test_an_implementation_missing_from_the_suite_is_seen_by_shape_by_base_and_by_descent() -> None:
    for text, name in ((WOODEN, "Wooden"), (DECLARED, "Glass"), (WOODEN + DERIVED, "Oak")):
        suite = "Shelf, Wooden" if name == "Oak" else "Shelf"
        assert unproven({"a.py": SHELF, "b.py": text}, {"t": suite}) == [f"Shelf: its suite does not run {name}"]
        assert unproven({"a.py": SHELF, "b.py": text}, {"t": f"{suite}, {name}"}) == []


def test_another_shape_is_no_implementation() -> None:
    for other in (
        "class Bag:\n    size: int\n    def put(self, item): ...",
        "class Bag:\n    def put(self, key, *, value): ...",
        "class Bag: ...",
    ):
        assert unproven({"a.py": SHELF, "b.py": other}, {"t": "Shelf"}) == []
