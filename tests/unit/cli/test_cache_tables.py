"""Tables show what an answer says, and nothing in an answer can style, break or forge them."""

import io

import pytest
from rich.console import Console

from fakes.operated import TEXT, operator
from kvist.base.errors import KvistError
from kvist.cli.cache_tables import shown


def text_of(verb: str, answer: dict[str, object]) -> str:
    console = Console(file=io.StringIO(), width=220)
    for each in shown(verb, answer):
        console.print(each)
    return console.file.getvalue()


def test_every_verb_s_answer_has_a_table() -> None:
    with operator() as there:
        there.store(TEXT)
        for verb, body in (
            ("tiers", {}),
            ("list", {"limit": 1}),
            ("explain", {"prompt": TEXT}),
            ("copy", {"all": True, "source": "pool", "target": "dram"}),
            ("verify", {"all": True}),
            ("purge", {"all": True}),
        ):
            shown_text = text_of(verb, there.verbs.do(verb, body))
            assert "pool" in shown_text, verb
        assert "There are more" not in text_of("list", there.verbs.do("list", {}))


def test_a_limit_says_how_to_see_more() -> None:
    with operator() as there:
        there.store(TEXT)
        assert "--limit" in text_of("list", there.verbs.do("list", {"limit": 1}))


def block(**changes: object) -> dict[str, object]:
    facts = {"hash": "ab" * 32, "tier": "pool", "group": 0, "namespace": "00" * 32, "tenant": "11" * 16}
    facts |= {"default_tenant": False, "bytes": 600, "created_unix_s": 0.0, "expires_unix_s": None, "pinned": True}
    return facts | changes


def listing(*blocks: dict[str, object]) -> dict[str, object]:
    return {"blocks": list(blocks), "more": False, "errors": []}


def test_times_and_tenants_are_shown_so_that_people_can_read_them() -> None:
    said = text_of("list", listing(block(), block(default_tenant=True, expires_unix_s=4e9)))
    for part in ("1970-01-01 00:00:00Z", "2096-10-02 07:06:40Z", "never", "default", "11111111", "600 B", "yes"):
        assert part in said
    assert "s" in text_of("list", listing(block(created_unix_s=1e300)))


def test_markup_in_an_answer_is_text() -> None:
    said = text_of("list", listing(block(tier="[red]pool[/red]")) | {"errors": [{"tier": "[b]", "error": "[/b]"}]})
    assert "[red]pool[/red]" in said
    assert "[b]: [/b]" in said


@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        ("tiers", {}),
        ("tiers", {"tiers": [{"name": "x"}]}),
        ("tiers", {"tiers": 7}),
        ("list", {"blocks": [{}], "more": False, "errors": []}),
        ("list", listing(block(hash=7))),
        ("list", listing(block(bytes="many"))),
        ("explain", {"tokens": "x", "sources": []}),
        ("purge", {"tiers": [[]], "unknown": []}),
        ("purge", {}),
    ],
)
def test_an_answer_of_another_kind_is_an_error(verb: str, answer: dict[str, object]) -> None:
    with pytest.raises(KvistError, match="makes no sense"):
        text_of(verb, answer)
