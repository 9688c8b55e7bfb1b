"""One word per idea (docs/reference/glossary.md), no leftovers, and nothing about a machine.

The files of this folder have to name what they forbid, so the checks of words leave them out, and so does the glossary.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

KINDS = {
    "util": "the noun it knows about",
    "utils": "the noun it knows about",
    "helper": "the noun it knows about",
    "helpers": "the noun it knows about",
    "common": "the noun it knows about",
    "misc": "the noun it knows about",
    "manager": "what it owns or decides",
    "managers": "what it owns or decides",
}
"""Words that say what kind of code it is and not what it is about: no name of a module or class."""

PARTS = {
    "page": "block",
    "pages": "block",
    "slot": "block, or row for the place of one token",
    "slots": "block, or row for the place of one token",
    "num": "the plural noun, as in blocks or tokens_max",
    "nb": "the plural noun, as in blocks or tokens_max",
    "tpot": "inter_token",
    "itl": "inter_token",
    "whitelist": "allowed",
    "blacklist": "denied",
}
"""Parts of the names that we define; names of other libraries that we only use are theirs."""

BORROWED = {
    "src/kvist/app/vllm.py": {"get_num_new_matched_tokens", "num_computed_tokens", "num_external_tokens"},
}
"""Names that we define because methods of another library's are overridden, by file."""

PHRASES = {
    r"\bwhite-?list": "allow-list",
    r"\bblack-?list": "deny-list",
    r"\bslaves?\b": "replica",
    r"\bsanity[ -]": "check",
    r"\bKV[- ]pages?\b": "block",
    r"\bKV[- ]slots?\b": "block",
    r"\bpage tables?\b": "block table",
    r"\bTPOT\b": "inter-token latency",
    r"\bblazing": "a measured figure with the command that made it",
    r"\bstate[- ]of[- ]the[- ]art\b": "a measured figure with the command that made it",
}
"""Phrases in code, comments and documents, whatever their case."""

LEFTOVERS = re.compile(r"\b(?:FIXME|TODO|XXX|HACK)\b")
MACHINE = re.compile(
    r"(?:^|[^a-z.])/(?:work|root|farm|home|Users)/\w"
    r"|/tmp/(?:scratch)"
    r"|(?:pypi|npmjs|debian|pythonhosted|pytorch)[.](?:org|com)"
)


GLOSSARY = "docs/reference/glossary.md"
"""Names the words of others, so that their readers find ours."""


def own(files: dict[str, str]) -> dict[str, str]:
    """The files that the checks of words read."""
    return {name: text for name, text in files.items() if not name.startswith("tests/tidy/") and name != GLOSSARY}


def words_of(name: str) -> list[str]:
    """The words of an identifier, whether joined by underscores or by capitals."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def names_defined(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Each name that a file gives to something, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def kinds(name: str, text: str) -> list[str]:
    """Complains of modules and classes named after a kind of code."""
    path = PurePosixPath(name)
    modules = [word for part in path.with_suffix("").parts for word in words_of(part)]
    classes = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    found = [word for word in modules if word in KINDS]
    found += [word for each in classes for word in words_of(each) if word in KINDS]
    return [f"{name}: {word!r}; name it by {KINDS[word]}" for word in found]


def synonyms(name: str, text: str) -> list[str]:
    """Complains of names that use another word than the glossary's."""
    return [
        f"{name}:{line}: {defined!r}; say {PARTS[word]}"
        for defined, line in names_defined(ast.parse(text))
        for word in words_of(defined)
        if word in PARTS and defined != "__slots__" and defined not in BORROWED.get(name, ())
    ]


def phrases(name: str, text: str) -> list[str]:
    """Complains of phrases for which there is a better one."""
    return [
        f"{name}: {match.group()!r}; say {better}"
        for pattern, better in PHRASES.items()
        for match in re.finditer(pattern, text, re.IGNORECASE)
    ]


def leftovers(name: str, text: str) -> list[str]:
    """Complains of markers of unfinished work."""
    return [f"{name}: {match.group()}" for match in LEFTOVERS.finditer(text)]


def debris(name: str, text: str) -> list[str]:
    """Complains of debugging calls anywhere, and of prints in the package outside the command line."""
    silent = name.startswith("src/kvist/") and not name.startswith("src/kvist/cli/")
    banned = {"breakpoint"} | ({"print"} if silent else set())
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    found = [call.func for call in calls if isinstance(call.func, ast.Name) and call.func.id in banned]
    imports = [alias for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for alias in node.names]
    return [f"{name}:{call.lineno}: {call.id}()" for call in found] + [
        f"{name}:{alias.lineno}: import {alias.name}" for alias in imports if alias.name == "pdb"
    ]


def machine(name: str, text: str) -> list[str]:
    """Complains of paths of one machine and of a package registry's hosts."""
    return [f"{name}: {match.group().strip()!r}" for match in re.finditer(MACHINE, text)]


def test_nothing_is_named_after_a_kind_of_code(python_files: dict[str, str], hold: Callable[..., None]) -> None:
    hold(kinds, own(python_files))


def test_names_use_the_words_of_the_glossary(sources: dict[str, str], hold: Callable[..., None]) -> None:
    hold(synonyms, sources)


def test_texts_use_the_better_phrase(text_files: dict[str, str], hold: Callable[..., None]) -> None:
    hold(phrases, own(text_files))


def test_nothing_unfinished_is_left_behind(text_files: dict[str, str], hold: Callable[..., None]) -> None:
    hold(leftovers, own(text_files))


def test_no_debugging_is_left_behind(python_files: dict[str, str], hold: Callable[..., None]) -> None:
    hold(debris, python_files)


def test_no_text_knows_the_machine_it_was_written_on(text_files: dict[str, str], hold: Callable[..., None]) -> None:
    hold(machine, text_files)


def test_a_kind_is_seen_in_a_module_and_in_a_class() -> None:
    assert kinds("src/kvist/blocks/pool.py", "class BlockPool: ...") == []
    assert len(kinds("src/kvist/utils/text.py", "")) == 1
    assert len(kinds("src/kvist/blocks/pool_helpers.py", "")) == 1
    assert len(kinds("src/kvist/blocks/pool.py", "class KVCacheManager: ...")) == 1


def test_a_synonym_is_seen_where_it_is_defined_and_not_where_it_is_used() -> None:
    for wrong in (
        "page_ids = 1",
        "def f(slot): ...",
        "class PagePool: ...",
        "self.num_blocks = 1",
        "itl_s: float = 0",
    ):
        assert len(synonyms("a.py", wrong)) == 1, wrong
    for fine in (
        "x = config.num_layers",
        "f(slots=True)",
        "paged = 1",
        "__slots__ = ()",
        "window_number = 1",
    ):
        assert synonyms("a.py", fine) == [], fine


def test_a_name_is_borrowed_where_its_library_is_overridden_and_nowhere_else() -> None:
    for name, borrowed in BORROWED.items():
        text = "\n".join(f"def {each}(): ..." for each in borrowed)
        assert synonyms(name, text) == []
        assert len(synonyms("a.py", text)) == len(borrowed)
        assert len(synonyms(name, "num_blocks = 1")) == 1


def test_a_phrase_is_seen_in_any_case_and_only_as_a_whole() -> None:
    assert len(phrases("a.md", "The KV pages are in a Page Table on a blacklist.")) == 3
    assert phrases("a.md", "This page explains the paged pool; the model page; flash; enslaved.") == []


def test_leftovers_and_debris_are_seen() -> None:
    assert len(leftovers("a.py", "# TODO: later, see FIXME")) == 2
    assert leftovers("a.md", "the toDo list and a XXXL shirt") == []
    assert len(debris("src/kvist/blocks/pool.py", "print(1)\nbreakpoint()\nimport pdb")) == 3
    assert debris("src/kvist/cli/main.py", "print(1)") == []
    assert len(debris("tests/unit/test_a.py", "breakpoint()")) == 1


def test_a_path_of_a_machine_and_a_registry_are_seen() -> None:
    home, registry = "/".join(["", "home", "me", "kvist"]), ".".join(["https://pypi", "org/simple"])
    assert len(machine("a.md", f"see {home} and {registry}")) == 2
    assert machine("a.md", "./work/x, https://example.com/root/y, src/home/z, /var/lib/kvist") == []


def test_an_identifier_is_read_word_by_word() -> None:
    assert words_of("KVCacheManager") == ["kv", "cache", "manager"]
    assert words_of("block_ids") == ["block", "ids"]
