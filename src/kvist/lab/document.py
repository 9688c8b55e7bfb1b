"""A made-up inventory, as long as asked for: a text whose every line is a fact one can ask about; pure."""

from kvist.lab.draw import Span, integers

_THINGS = (
    "brass hinges", "copper kettles", "oak planks", "glass jars", "wool blankets", "iron nails", "paper lanterns",
    "clay pots", "silver spoons", "linen towels", "tin whistles", "leather belts", "wooden bowls", "candle holders",
    "garden shears", "fishing nets",
)  # fmt: skip  # one word is not one line
_PLACES = ("north hall", "south hall", "cellar", "attic", "boat shed", "stable", "workshop", "greenhouse")
_PEOPLE = ("Agnes", "Bertil", "Clara", "David", "Elsa", "Folke", "Greta", "Harald")

TOKENS_PER_LINE = 25
"""What a line takes in the vocabularies of the Llama and Gemma families, about."""

TOKENS_PER_LINE_MAX = 32
"""What no line of fewer than 1,000 exceeds in vocabularies that split numbers into digits."""


def inventory(lines: int, seed: int) -> str:
    """That many numbered lines; the same seed gives the same lines, and more lines begin with the fewer.

    >>> inventory(1, 7).startswith("Entry 1: ")
    True
    """
    things = integers(seed, "things", lines, Span(low=0, high=len(_THINGS) - 1))
    places = integers(seed, "places", lines, Span(low=0, high=len(_PLACES) - 1))
    people = integers(seed, "people", lines, Span(low=0, high=len(_PEOPLE) - 1))
    counts = integers(seed, "counts", lines, Span(low=11, high=99))
    shelves = integers(seed, "shelves", lines, Span(low=1, high=40))
    return "\n".join(
        f"Entry {number + 1}: {counts[number]} {_THINGS[things[number]]} on shelf {shelves[number]} in the"
        f" {_PLACES[places[number]]}, counted by {_PEOPLE[people[number]]}."
        for number in range(lines)
    )
