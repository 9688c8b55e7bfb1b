"""The operator's verbs: what they choose, whose they touch, and what they say when something is not as it should be."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from fakes.operated import KEY_OF, TEXT, Operator, operator, some_explanation, tenant_of
from fakes.stock import DRAM, POOL
from fakes.tiers import BLUE
from fakes.tokenizer import ByteTokenizer
from kvist.base.errors import KvistError, ModelError
from kvist.base.ids import TenantId, TokenId
from kvist.blocks.keys import Namespace
from kvist.server.administration_ports import Explanation
from kvist.server.administration_verbs import Verbs
from kvist.server.errors import ApiError

OTHER_MODEL = Namespace(b"another model".ljust(32))


@pytest.fixture
def there() -> Iterator[Operator]:
    with operator() as made:
        yield made


def do(there: Operator, verb: str, **body: object) -> dict[str, object]:
    return there.verbs.do(verb, body)


def refusal(there: Operator, verb: str, **body: object) -> ApiError:
    before = (there.hashes(POOL), there.hashes(DRAM))
    with pytest.raises(ApiError) as caught:
        do(there, verb, **body)
    assert (there.hashes(POOL), there.hashes(DRAM)) == before, "something was changed by what was refused"
    return caught.value


def rows(answer: dict[str, object]) -> dict[str, dict[str, int]]:
    return {row["tier"]: row for row in answer["tiers"]}


def test_a_listing_says_of_each_block_what_and_whose_it_is(there: Operator) -> None:
    hashes = there.store(TEXT)
    answer = do(there, "list")
    assert [block["hash"] for block in answer["blocks"]] == hashes
    assert (answer["more"], answer["errors"]) == (False, [])
    first = answer["blocks"][0]
    assert (first["tier"], first["group"], first["bytes"], first["pinned"]) == ("pool", 0, 600, False)
    assert (first["namespace"], first["default_tenant"]) == ("00" * 32, True)


def test_a_listing_of_one_tenant_never_shows_another_s(there: Operator) -> None:
    by_salt = {salt: sorted(there.store(TEXT, salt)) for salt in ("blue", "red", None)}
    assert len({each for hashes in by_salt.values() for each in hashes}) == 3 * len(by_salt["blue"])
    for salt, hashes in by_salt.items():
        whose = {"default_tenant": True} if salt is None else {"tenant": salt}
        blocks = do(there, "list", **whose)["blocks"]
        assert sorted(block["hash"] for block in blocks) == hashes
        assert {block["default_tenant"] for block in blocks} == {salt is None}
    assert do(there, "list", tenant="nobody")["blocks"] == []
    assert len(do(there, "list")["blocks"]) == 3 * len(by_salt["blue"])


def test_a_salt_that_is_called_default_is_not_the_tenant_without_one(there: Operator) -> None:
    there.store(TEXT)
    assert do(there, "list", tenant="default")["blocks"] == []
    assert KEY_OF(tenant_of("default")) != KEY_OF(tenant_of(None))


def test_a_limit_shows_so_many_and_says_that_there_are_more(there: Operator) -> None:
    count = len(there.store(TEXT))
    for limit, more in ((1, True), (count - 1, True), (count, False), (count + 1, False)):
        answer = do(there, "list", limit=limit)
        assert (len(answer["blocks"]), answer["more"]) == (min(limit, count), more)
    do(there, "copy", all=True, source="pool", target="dram")
    answer = do(there, "list", limit=count + 1)
    assert [block["tier"] for block in answer["blocks"]] == ["dram"] * count + ["pool"]


def test_a_block_is_shown_with_all_its_copies_by_the_beginning_of_its_hash(there: Operator) -> None:
    first, *_ = there.store(TEXT)
    do(there, "copy", hashes=[first], source="pool", target="dram")
    for given in (first, first[:8], first[:20].upper()):
        blocks = do(there, "show", hash=given)["blocks"]
        assert [(block["tier"], block["hash"]) for block in blocks] == [("dram", first), ("pool", first)]
    assert refusal(there, "show", hash="0" * 64).family.status == 404
    assert refusal(there, "show", hash=first, tenant="blue").family.status == 404


def test_a_shortened_hash_that_means_several_blocks_is_refused(there: Operator) -> None:
    entries = there.trial.store(range(3))
    row = there.trial.pool._rows
    for number, entry in enumerate(entries):
        record, kept = row.pop(entry.address)
        twin = b"\x11" * 31 + bytes([number])
        address = type(entry.address)(key=entry.address.key._replace(hash=twin), tenant=BLUE)
        row[address] = (record, type(kept)(**{name: getattr(kept, name) for name in _ENTRY} | {"address": address}))
    said = refusal(there, "purge", hashes=["11111111"])
    assert said.code == "ambiguous_hash"
    assert "3 blocks" in str(said)
    assert rows(do(there, "purge", hashes=["11" * 31 + "01"]))["pool"]["done"] == 1
    assert len(there.hashes()) == 2


_ENTRY = ("record_bytes", "created_unix_s", "expires_unix_s", "pinned")


@pytest.mark.parametrize("verb", ["pin", "unpin", "verify", "purge"])
def test_a_change_touches_what_is_chosen_and_nothing_else(there: Operator, verb: str) -> None:
    blue, red = there.store(TEXT, "blue"), there.store(TEXT, "red")
    for body, count in (
        ({"hashes": [blue[0], "ab" * 32]}, 1),
        ({"hashes": [blue[1]], "tenant": "red"}, 0),
        ({"prompt": TEXT[:20], "tenant": "blue"}, 5),
        ({"prompt": TEXT[:20]}, 0),
        ({"tenant": "blue"}, len(blue)),
        ({"tenant": "blue", "tier": "dram"}, 0),
    ):
        there.store(TEXT, "blue")
        answer = do(there, verb, **body)
        assert sum(row["done"] for row in answer["tiers"]) == count, body
        assert set(red) <= set(there.hashes()), body
    assert do(there, verb, hashes=["ab" * 32])["unknown"] == ["ab" * 32]


def test_purging_one_tenant_leaves_the_other_and_purging_all_leaves_nothing(there: Operator) -> None:
    there.store(TEXT, "blue")
    red = there.store(TEXT, "red")
    do(there, "copy", all=True, source="pool", target="dram")
    assert {row["done"] for row in do(there, "purge", tenant="blue")["tiers"]} == {len(red)}
    assert there.hashes(POOL) == there.hashes(DRAM) == sorted(red)
    do(there, "purge", all=True)
    assert there.hashes(POOL) == there.hashes(DRAM) == []


def test_a_prompt_means_the_blocks_of_this_model_alone(there: Operator) -> None:
    mine = there.store(TEXT)
    assert there.store(TEXT, namespace=OTHER_MODEL) == mine
    assert rows(do(there, "purge", prompt=TEXT))["pool"]["done"] == len(mine)
    assert there.hashes() == sorted(mine)


def test_a_conversation_means_what_the_template_makes_of_it(there: Operator) -> None:
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert do(there, "explain", messages=messages)["tokens"] > 0
    assert refusal(there, "explain", messages=[{"role": "assistant", "content": "x"}]).param == "messages"
    assert rows(do(there, "pin", messages=messages))["pool"]["chosen"] == 0


def test_blocks_are_moved_copied_and_prefetched(there: Operator) -> None:
    hashes = there.store(TEXT)
    (row,) = do(there, "copy", hashes=hashes[:2], source="pool", target="dram")["tiers"]
    assert (row["from"], row["to"], row["chosen"], row["done"]) == ("pool", "dram", 2, 2)
    (row,) = do(there, "move", hashes=hashes[2:4], source="pool", target="dram")["tiers"]
    assert (row["done"], there.hashes(DRAM)) == (2, sorted(hashes[:4]))
    assert there.hashes(POOL) == sorted(set(hashes) - set(hashes[2:4]))
    (row,) = do(there, "prefetch", prompt=TEXT, target="dram")["tiers"]
    assert (row["from"], row["chosen"], row["done"]) == ("pool", len(hashes) - 4, len(hashes) - 4)
    assert there.hashes(DRAM) == sorted(hashes)
    assert do(there, "prefetch", prompt=TEXT, target="dram")["tiers"] == []


def test_a_tier_that_fails_is_told_of_and_the_others_are_done(there: Operator) -> None:
    count = len(there.store(TEXT))
    do(there, "copy", all=True, source="pool", target="dram")
    there.trial.pool.close()
    assert "closed" in do(there, "list")["errors"][0]["error"]
    assert len(do(there, "list")["blocks"]) == count
    answer = rows(do(there, "verify", all=True))
    assert (answer["dram"]["done"], "closed" in answer["pool"]["error"]) == (count, True)
    (row,) = do(there, "copy", all=True, source="dram", target="pool")["tiers"]
    assert "closed" in row["error"] or row["left"] == count
    assert "closed" in rows(do(there, "purge", all=True))["pool"]["error"]
    assert there.hashes(DRAM) == []


def test_the_tiers_are_told_of_with_their_ledgers(there: Operator) -> None:
    count = len(there.store(TEXT))
    do(there, "copy", all=True, source="pool", target="dram")
    dram, pool = do(there, "tiers")["tiers"]
    assert (dram["name"], dram["stored"], dram["resident"], dram["breaker"]) == ("dram", count, count, "closed")
    assert dram["bytes_used"] == count * 640
    assert (pool["name"], pool["bytes_max"]) == ("pool", None)


def test_a_prompt_is_explained_in_the_words_of_an_answer(there: Operator) -> None:
    answer = do(there, "explain", prompt=TEXT, tenant="blue")
    assert (answer["tokens"], answer["sources"][0]["tokens"]) == (len(TEXT) + 1, 8)
    assert answer["decision"]["chosen"] == answer["decision"]["options"][1]
    assert answer["prefix_end"] == "nothing more is stored"


def test_the_engine_is_asked_on_behalf_of_the_tenant() -> None:
    asked: list[tuple[int, TenantId]] = []

    def explain(tokens: Sequence[TokenId], tenant: TenantId, timeout_s: float) -> Explanation:
        assert timeout_s > 0
        asked.append((len(tokens), tenant))
        return some_explanation()

    with operator(explain=explain) as there:
        do(there, "explain", prompt="abc")
        do(there, "explain", prompt="abcd", tenant="blue")
    assert asked == [(4, TenantId("default")), (5, TenantId("salt:blue"))]


@pytest.mark.parametrize("problem", [KvistError("it was stopped"), TimeoutError()], ids=["failed", "slow"])
def test_an_engine_that_does_not_answer_is_an_error_that_says_so(problem: Exception) -> None:
    def explain(*_: object) -> Explanation:
        raise problem

    with operator(explain=explain) as there:
        said = refusal(there, "explain", prompt="abc")
    assert (said.family.status, said.code) == (500, "engine_failed")


@pytest.mark.parametrize(
    ("verb", "body", "complaint"),
    [
        ("purge", {}, "Nothing is chosen"),
        ("purge", {"all": True, "tenant": "x"}, "'all' stands alone"),
        ("purge", {"all": True, "hashes": ["ab" * 32]}, "'all' stands alone"),
        ("purge", {"all": "yes"}, "'all'"),
        ("purge", {"hashes": ["ab" * 32], "prompt": "x"}, "hashes or by a prompt"),
        ("purge", {"hashes": []}, "Nothing is chosen"),
        ("purge", {"hashes": ["xyz"]}, "hexadecimal digits"),
        ("purge", {"hashes": ["ab"]}, "at least the first 8"),
        ("purge", {"hashes": ["ab" * 33]}, "hexadecimal digits"),
        ("purge", {"hashes": ["ab" * 31 + "٣٤"]}, "hexadecimal digits"),
        ("purge", {"hashes": "ab" * 32}, "'hashes'"),
        ("purge", {"hashes": ["ab" * 32] * 10_001}, "at most 10000"),
        ("purge", {"tenant": ""}, "'tenant'"),
        ("purge", {"tenant": "x" * 257}, "'tenant'"),
        ("purge", {"tenant": "x", "default_tenant": True}, "two tenants"),
        ("purge", {"all": True, "tier": "cellar"}, "no tier 'cellar'"),
        ("purge", {"all": True, "timeout_s": 0}, "'timeout_s'"),
        ("purge", {"all": True, "timeout_s": 1e9}, "'timeout_s'"),
        ("purge", {"all": True, "force": True}, "not a parameter"),
        ("purge", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "either 'prompt' or 'messages'"),
        ("purge", {"prompt": "x" * 1001}, "1002 tokens"),
        ("move", {"all": True, "source": "dram", "target": "dram"}, "name two tiers"),
        ("move", {"all": True, "source": "dram", "target": "cellar"}, "no tier 'cellar'"),
        ("copy", {"all": True, "source": "cellar", "target": "dram"}, "no tier 'cellar'"),
        ("copy", {"all": True, "target": "dram"}, "'source' is required"),
        ("copy", {"all": True, "source": "dram", "target": "pool", "tier": "dram"}, "means nothing here"),
        ("prefetch", {"all": True, "target": "cellar"}, "no tier 'cellar'"),
        ("list", {"limit": 0}, "'limit'"),
        ("list", {"limit": 10**9}, "'limit'"),
        ("list", {"limit": "10"}, "'limit'"),
        ("list", {"limit": True}, "'limit'"),
        ("list", {"tier": "cellar"}, "no tier 'cellar'"),
        ("show", {"hash": 12345678}, "'hash'"),
        ("explain", {}, "either 'prompt' or 'messages'"),
        ("explain", {"prompt": ""}, "'prompt'"),
        ("explain", {"messages": []}, "'messages'"),
        ("explain", {"messages": [{"role": "nobody", "content": "x"}]}, "'messages"),
        ("tiers", {"tier": "dram"}, "not a parameter"),
        ("destroy", {}, "'destroy' is not a verb"),
        ("__init__", {}, "is not a verb"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(there: Operator, verb: str, body: dict, complaint: str) -> None:
    there.store(TEXT)
    assert complaint in str(refusal(there, verb, **body))


def test_a_tokenizer_that_cannot_be_had_is_an_error_that_says_so(there: Operator) -> None:
    def gone() -> ByteTokenizer:
        raise ModelError("the files are gone")

    model = replace(there.verbs._model, open_tokenizer=gone)
    with pytest.raises(ApiError, match="the files are gone"):
        Verbs(there.trial.stock, KEY_OF, model).do("explain", {"prompt": "x"})


def test_without_a_model_or_a_secret_it_says_what_is_missing() -> None:
    with operator(knows_model=False) as there:
        there.store(TEXT)
        assert refusal(there, "purge", prompt=TEXT).code == "no_model"
        assert refusal(there, "explain", prompt=TEXT).code == "no_model"
        no_secret = Verbs(there.trial.stock, None, None)
        with pytest.raises(ApiError, match="secret"):
            no_secret.do("list", {"tenant": "blue"})
        assert {block["default_tenant"] for block in no_secret.do("list", {})["blocks"]} == {False}
