"""Files stay under 400 lines and function bodies under 60; what is longer than that may only shrink."""

import ast
from collections.abc import Callable, Iterator
from functools import partial

FILE_LINES_MAX = 400
BODY_LINES_MAX = 60
RED_ZONE_END = 75
"""A body a little over the bound is cheap to cut, so none may be listed as long between the two."""

LONG_BODIES: dict[str, int] = {}
"""The ratchet: "path:function" and the lines of bodies that were long when the rule came; only shrinks."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def body_lines(function: Function) -> int:
    """Lines of a function without its decorators, signature and docstring."""
    has_docstring = ast.get_docstring(function, clean=False) is not None
    end = function.end_lineno or 0
    if not has_docstring:
        return end - function.body[0].lineno + 1
    return end - (function.body[0].end_lineno or 0)


def functions(text: str) -> Iterator[Function]:
    """Every function and method of a file, nested ones too."""
    return (node for node in ast.walk(ast.parse(text)) if isinstance(node, Function))


def long_file(name: str, text: str) -> list[str]:
    """Complains when a file has more lines than may be read at once."""
    lines = len(text.splitlines())
    return [f"{name}: {lines} lines, at most {FILE_LINES_MAX}"] if lines > FILE_LINES_MAX else []


def long_bodies(name: str, text: str, ratchet: dict[str, int]) -> list[str]:
    """Complains of bodies over the bound that are not listed, and of listed ones that changed."""
    complaints = []
    for function in functions(text):
        key, lines = f"{name}:{function.name}", body_lines(function)
        bound = ratchet.get(key, BODY_LINES_MAX)
        if lines > bound:
            complaints.append(f"{key}: body of {lines} lines, at most {bound}")
        elif key in ratchet and lines < bound:
            complaints.append(f"{key}: body shrank to {lines} lines; lower or drop its entry in LONG_BODIES")
    return complaints


def red_zone(ratchet: dict[str, int]) -> list[str]:
    """Complains of listed lengths that a small cut would cure."""
    return [f"{key}: {lines} lines; cut it" for key, lines in ratchet.items() if lines <= RED_ZONE_END]


def function_of(lines: int, *, docstring: bool = False) -> str:
    """The text of a function with a body of so many lines."""
    head = ["def f(", "    a,", "):"] + (['    """Says', "    more.", '    """'] if docstring else [])
    return "\n".join(head + ["    a += 1"] * lines) + "\n"


def test_files_are_short_enough_to_read(python_files: dict[str, str], hold: Callable[..., None]) -> None:
    hold(long_file, python_files)


def test_bodies_are_short_enough_to_hold_in_mind(python_files: dict[str, str], hold: Callable[..., None]) -> None:
    hold(partial(long_bodies, ratchet=LONG_BODIES), python_files)
    assert red_zone(LONG_BODIES) == []


def test_a_file_over_the_bound_is_seen() -> None:
    assert long_file("a.py", "x = 1\n" * 400) == []
    assert long_file("a.py", "x = 1\n" * 401) == ["a.py: 401 lines, at most 400"]


def test_a_body_over_the_bound_is_seen_and_its_docstring_is_not_counted() -> None:
    for docstring in (False, True):
        assert long_bodies("a.py", function_of(60, docstring=docstring), {}) == []
        assert long_bodies("a.py", function_of(61, docstring=docstring), {}) == ["a.py:f: body of 61 lines, at most 60"]


def test_a_method_and_a_nested_function_are_seen() -> None:
    nested = "class A:\n" + "\n".join(f"    {line}" for line in function_of(61).splitlines())
    assert len(long_bodies("a.py", nested, {})) == 1
    assert len(long_bodies("a.py", "def g():\n" + "\n".join(f"    {x}" for x in function_of(61).splitlines()), {})) == 2


def test_a_listed_body_may_stay_but_neither_grow_nor_keep_a_stale_entry() -> None:
    assert long_bodies("a.py", function_of(80), {"a.py:f": 80}) == []
    assert long_bodies("a.py", function_of(81), {"a.py:f": 80}) == ["a.py:f: body of 81 lines, at most 80"]
    assert "lower or drop" in long_bodies("a.py", function_of(79), {"a.py:f": 80})[0]


def test_the_red_zone_just_above_the_bound_stays_empty() -> None:
    assert red_zone({"a.py:f": 76}) == []
    assert red_zone({"a.py:f": 61}) == ["a.py:f: 61 lines; cut it"]
