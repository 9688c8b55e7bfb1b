"""Terms are shown as text, and only those that are known."""

import dataclasses
from pathlib import Path

import pytest

from kvist.app.catalogue import Terms
from kvist.app.terms import read_terms, readable
from kvist.base.errors import ModelError
from tiny_wheels import publish

DOCUMENT = """
<html><head><title>Title</title><style>p { color: red }</style></head><body>
<nav><a href="/">Home</a></nav>
<article class="body"><h1>Terms of Use</h1>
<div class="nocontent"><p>Was this helpful?</p><br><img src="x"></div>
<p>You may   use it,<br> &amp; share it &quot;freely&quot;.</p>
<script>alert("x")</script>
<ul><li>First</li><li>Second <b>bold</b></li></ul>
<p>Last.<p>Unclosed \x1b[31m red
</article><footer>Footer</footer></body></html>
"""


def test_paragraphs_headings_and_lists_are_kept_and_the_rest_is_not() -> None:
    assert readable(DOCUMENT).split("\n\n") == [
        "Terms of Use",
        'You may use it, & share it "freely".',
        "- First\n- Second bold",
        "Last.",
        "Unclosed [31m red",
    ]


def test_long_paragraphs_are_wrapped_and_lists_hang() -> None:
    lines = readable(f"<article><li>{'word ' * 100}</li></article>").splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("- word")
    assert all(line.startswith("  word") for line in lines[1:])


@pytest.mark.parametrize("html", ["", "no article", "<article>", "</article>", "<article><style><p>x", "<p><article"])
def test_a_document_without_text_gives_none(html: str) -> None:
    assert readable(html) == ""


@pytest.fixture
def terms(index: Path, tiny_file: Path) -> Terms:
    published = publish(index, tiny_file, terms=True).terms
    assert published is not None
    return published


def test_terms_are_read_from_their_package(terms: Terms) -> None:
    assert read_terms(terms) == "Tiny Terms\n\nBe kind."


def test_other_terms_than_those_that_are_known_are_refused(terms: Terms) -> None:
    with pytest.raises(ModelError, match=r"other terms than those of https://example\.com/terms"):
        read_terms(dataclasses.replace(terms, sha256="0" * 64))
