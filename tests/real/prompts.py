"""Prompts of many kinds for the real models, the same on every run: written here, or grown by rule."""

from collections.abc import Callable, Sequence

from kvist.lab.document import inventory

PROSE = (
    "The ferry left the harbour a little after six, when the fog still lay on the water and the gulls had not yet "
    "decided whether the day was worth shouting about. Margit stood at the rail with her hands in the pockets of a "
    "coat that had belonged to her brother, and counted the lamps along the quay until there were none left to count."
)
DIALOGUE = (
    '"You did not lock it," said the older of the two. "I did," said the other, "and then I came back for the map, and '
    'unlocked it, and now I remember." They looked at the door for a while. "Then who," asked the first, "is inside?"'
)
CODE = '''def merge(left: list[int], right: list[int]) -> list[int]:
    """Merges two sorted lists."""
    merged = []
    while left and right:
        source = left if left[0] <= right[0] else right
        merged.append(source.pop(0))
    return merged + left + right


print(merge([1, 4, 9], [2, 3, 10, 11]))
'''
SHOPPING = """# Before the weekend

1. Flour, 2 kg
2. Butter (salted), 500 g
3. Lemons x 6
   - the small ones
   - not from the top shelf
4. A new handle for the blue door
5. Ask Henrik about: ladders, paint, the *other* key
6. """
QUERY = """SELECT customers.name, COUNT(*) AS orders, SUM(orders.total_cents) / 100.0 AS spent
FROM customers JOIN orders ON orders.customer_id = customers.id
WHERE orders.placed_at >= '2024-01-01' AND orders.status <> 'cancelled'
GROUP BY customers.name HAVING COUNT(*) > 3 ORDER BY"""
RECORD = (
    '{"id": 40817, "tags": ["red", "späť", "\\u00e9t\\u00e9", ""], "position": {"x": -0.0031, "y": 6.02e23}, '
    '"owner": null, "history": [{"at": "2031-02-28T23:59:60Z", "by": "m.olsson", "what": "moved"}, {"at": '
)
NORTHERN = (
    "På morgonen låg isen blank över viken, och ingen vågade gå ut förrän Åkerblom hade prövat den med sin käpp. "
    "Der Bäcker öffnete trotzdem um fünf Uhr, weil er es seit dreißig Jahren so machte. Päivä oli kirkas ja kylmä."
)
SOUTHERN = (
    "El tren de las ocho nunca llega a las ocho, y por eso nadie en el pueblo compra relojes. À la gare, une dame "
    "attend depuis hier; elle a apporté du pain, deux pommes et un livre qu'elle connaît déjà. Il treno arriverà."
)
EASTERN = (
    "朝早く、祖母は庭に出て、昨日の雨で倒れた豆の支柱を一本ずつ立て直した。今天早上他没有带伞,却一直走到河边。"
    "Старый мост скрипел, как будто вспоминал каждого, кто по нему прошёл. 오늘은 아무도 문을 두드리지 않았다."
)
SCRIPTS = (
    "في الصباح فتح البائع دكانه ورتّب البرتقال في أكوام صغيرة. बच्चे नदी के किनारे पत्थर गिन रहे थे। "
    "הילדה שאלה למה הים מלוח. วันนี้ฝนตกตั้งแต่เช้า კატას სძინავს ფანჯარაზე."
)
EMOJI = (
    "Plan for the party 🎉🎂: bring 🍕🍕🍕 (no 🍍!!), 🥤, and the 🐶. Team: 👩‍🚀👨🏽‍🍳🧑‍🎨. "
    "Weather 🌦️→☀️? Flags: 🇸🇪🇯🇵🇧🇷. Vote 👍👎🤷‍♀️: "
)
NUMBERS = (
    "3.14159265358979 2.71828182845905 1.61803398874989 | 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, | 0xDEADBEEF "
    "0b101101 1e-9 -273.15 | 17 * 23 = 391, 19 * 21 = 399, 18 * 22 ="
)
SPACES = (
    "a\tb\t\tc\n\n\n    d   e\r\n\u00a0f\u200bg\u3000h \\ / \x1b[0m <b>&amp;</b> ```` ~~~~ %s {} $HOME ;;;; "
    "--- === ....... ?!?!\n\t\n"
)

ECHO = "All work and no rest makes the river slow. "


def _code_file(parts: int) -> str:
    verbs, nouns = ("load", "parse", "merge", "score", "trim", "store"), ("order", "block", "letter", "route", "ticket")
    return "\n\n".join(
        f"def {verbs[i % 6]}_{nouns[i % 5]}_{i}(items: list[dict], limit: int = {i * 7 % 90 + 10}) -> dict:\n"
        f'    """{verbs[i % 6].title()}s up to limit {nouns[i % 5]}s."""\n'
        f"    found = {{}}\n"
        f"    for index, item in enumerate(items[:limit]):\n"
        f"        if item['kind'] == '{nouns[(i + 2) % 5]}' and index % {i % 4 + 2}:\n"
        f"            found[item['key']] = item.get('weight', {i / 8}) * {i + 1}\n"
        f"    return found"
        for i in range(parts)
    )


def _json_lines(parts: int) -> str:
    colours = ("red", "green", "blue", "grey")
    return "\n".join(
        f'{{"id": {1000 + 37 * i}, "colour": "{colours[i * i % 4]}", "size": [{i % 9}, {i * 5 % 11}], '
        f'"price": {i * 173 % 997 / 10}, "sold": {"true" if i % 3 else "false"}, "note": null}}'
        for i in range(parts)
    )


def _table(parts: int) -> str:
    rows = (f"{i:03},{i * i % 1009},{(i * 7919) % 10007 / 100:.2f},{'ABCDE'[i % 5]}{i % 13}" for i in range(parts))
    return "day,visitors,euros,gate\n" + "\n".join(rows)


def _letters(parts: int) -> str:
    texts = (PROSE, NORTHERN, SOUTHERN, EASTERN, SCRIPTS, DIALOGUE, EMOJI)
    return "\n\n".join(f"Letter {i + 1}.\n{texts[i * 3 % 7]}" for i in range(parts))


TEXTS: dict[str, tuple[str, int]] = {
    "one token": (PROSE, 1),
    "one block": (DIALOGUE, 16),
    "one block and one": (PROSE, 17),
    "code": (CODE, 48),
    "list": (SHOPPING, 48),
    "query": (QUERY, 48),
    "record": (RECORD, 48),
    "northern": (NORTHERN, 48),
    "eastern": (EASTERN, 48),
    "scripts": (SCRIPTS, 48),
    "emoji": (EMOJI, 48),
    "numbers": (NUMBERS, 48),
    "spaces": (SPACES, 33),
    "short of a window": (inventory(40, seed=1), 511),
    "over a window": (_letters(14), 513),
    "table of 2,048": (_table(300), 2048),
    "inventory": (inventory(140, seed=2), 2051),
    "code file": (_code_file(60), 2112),
    "json lines": (_json_lines(140), 2305),
    "echo": (ECHO * 300, 2600),
    "letters": (_letters(70), 3001),
}
"""Name of each prompt, its text, and how many tokens of it are the prompt."""

LONG = 2000


def book(parts: int) -> str:
    """A text as long as wanted, whose chapters are of all kinds; 30 are more than 32,000 tokens."""
    kinds = (_letters, _code_file, _json_lines, _table)
    return "\n\n".join(f"Chapter {i + 1}\n\n{kinds[i % 4](9 + i)}" for i in range(parts))


def prompts(encode: Callable[[str], Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Token ids of every prompt in a model's vocabulary, by name, short and long ones in turns."""
    cut = {name: tuple(encode(text)[:tokens]) for name, (text, tokens) in TEXTS.items()}
    for name, (_, tokens) in TEXTS.items():
        assert len(cut[name]) == tokens, f"the text of {name!r} has only {len(cut[name])} of {tokens} tokens"
    names = list(cut)
    middle = len(names) // 2
    turns = [name for pair in zip(names[:middle], reversed(names), strict=False) for name in pair]
    return {name: cut[name] for name in [*turns, *(each for each in names if each not in turns)]}
