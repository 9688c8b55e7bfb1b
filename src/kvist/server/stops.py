"""Ends a text where one of its stop strings is complete, however the text is cut into parts.

Knows text alone. Laws:
    * What is handed out never contains a stop string, nor the beginning of one that may still be completed.
    * The stop string that is complete first wins; of several that end together, the longest.
    * A character costs the same whatever came before it.
"""

from collections.abc import Sequence


class StopStrings:
    """Watches the text of one output."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Watches for each of `stops`, none of which is empty."""
        self._matchers = [_Matcher(stop) for stop in stops]
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Takes the next part; returns what may be shown, and whether a stop string ended the output there."""
        if not self._matchers:
            return text, False
        held = self._held + text
        for index, character in enumerate(text, start=len(self._held) + 1):
            complete = [matcher.length for matcher in self._matchers if matcher.advance(character)]
            if complete:
                self._held = ""
                return held[: index - max(complete)], True
        keep = max(matcher.matched for matcher in self._matchers)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def finish(self) -> str:
        """Returns what was held back: the text ended before a stop string was complete."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """Knuth, Morris and Pratt's automaton of one string.

    Attributes:
        length: of the string.
        matched: length of the longest beginning of the string that the text seen so far ends with.
    """

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self.length = len(stop)
        self.matched = 0
        # _borders[n]: the longest beginning of stop[:n] that is shorter and also its end.
        self._borders = [0, 0]
        border = 0
        for index in range(1, len(stop)):
            border = self._extend(border, stop[index])
            self._borders.append(border)

    def _extend(self, matched: int, character: str) -> int:
        while matched and self._stop[matched] != character:
            matched = self._borders[matched]
        return matched + 1 if self._stop[matched] == character else 0

    def advance(self, character: str) -> bool:
        """Takes one character; whether the text now ends with the string, after which nothing more may come."""
        self.matched = self._extend(self.matched, character)
        return self.matched == self.length
