"""Terms that were published as a web document, as text that can be read in a terminal."""

import itertools
import re
import tempfile
import textwrap
from html.parser import HTMLParser
from pathlib import Path

from kvist.app.catalogue import Terms
from kvist.app.progress import Report, silent
from kvist.app.wheels import gather
from kvist.base.errors import ModelError

_BODY = "article"
_HEADINGS = frozenset({"h1", "h2", "h3", "h4"})
_PARAGRAPHS = _HEADINGS | {"p", "li", "aside", "div", "ul", "ol", "tr"}
_SILENT = frozenset({"script", "style", "button", "template", "devsite-feedback", "devsite-toc", "devsite-actions"})
_EMPTY = frozenset({"br", "hr", "img", "input", "link", "meta", "source", "wbr"})
_WIDTH = 100


def read_terms(terms: Terms, *, report: Report = silent) -> str:
    """Downloads the terms alone and returns them as readable text.

    Raises:
        ModelError: they can not be downloaded, or are not the text that is known.
        ConfigError: pip is not there.
    """
    with tempfile.TemporaryDirectory(prefix="kvist-") as folder:
        file = Path(folder) / "terms.html"
        digest = gather([terms.text], file, workspace=Path(folder), report=report)
        if digest != terms.sha256:
            raise ModelError(f"{terms.text.requirement} holds other terms than those of {terms.url}: SHA-256 {digest}")
        return readable(file.read_bytes().decode("utf-8", errors="replace"))


def readable(html: str) -> str:
    """The body of a web document as plain paragraphs, headings set off and lists marked.

    >>> print(readable("<nav>x</nav><article><h2>One</h2><p>Be <b>kind</b>.</p><ul><li>now<li>soon</ul></article>"))
    One
    <BLANKLINE>
    Be kind.
    <BLANKLINE>
    - now
    - soon
    """
    reader = _Reader()
    reader.feed(html)
    reader.close()
    paragraphs = reader.paragraphs()
    pairs = itertools.pairwise(paragraphs)
    gaps = ["", *("\n" if one.startswith("- ") and two.startswith("- ") else "\n\n" for one, two in pairs)]
    return "".join(gap + paragraph for gap, paragraph in zip(gaps, paragraphs, strict=False))


class _Reader(HTMLParser):
    """Collects the text of the first article, paragraph by paragraph."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._inside = 0
        self._muted: list[str] = []
        self._pieces: list[str] = []
        self._done: list[str] = []
        self._mark = ""

    def paragraphs(self) -> list[str]:
        """What was read, wrapped to the width of a terminal."""
        self._finish()
        return self._done

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begins a paragraph, or mutes what is not text."""
        self._inside += tag == _BODY
        hidden = "nocontent" in (dict(attrs).get("class") or "").split()
        if tag not in _EMPTY and (self._muted or tag in _SILENT or hidden):
            self._muted.append(tag)
        if tag in _PARAGRAPHS:
            self._finish()
            self._mark = "- " if tag == "li" else ""

    def handle_endtag(self, tag: str) -> None:
        """Ends a paragraph, or what was muted."""
        if tag in self._muted:
            while self._muted.pop() != tag:
                pass
        if tag in _PARAGRAPHS:
            self._finish()
        self._inside -= tag == _BODY

    def handle_data(self, data: str) -> None:
        """Adds to the paragraph."""
        if self._inside and not self._muted:
            self._pieces.append(data)

    def _finish(self) -> None:
        text = re.sub(r"\s+", " ", "".join(self._pieces)).strip()
        text = "".join(each for each in text if each.isprintable())
        if text:
            wrapped = textwrap.fill(text, _WIDTH, initial_indent=self._mark, subsequent_indent=" " * len(self._mark))
            self._done.append(wrapped)
        self._pieces.clear()
        self._mark = ""
