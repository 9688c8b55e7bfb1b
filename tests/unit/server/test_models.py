import pytest

from fakes.serving import MODEL, app_of, ask
from fakes.tokenizer import ByteTokenizer


@pytest.fixture
def app(start):
    return app_of(start(), ByteTokenizer())


def test_the_one_model_is_listed(app) -> None:
    listing = ask(app, "/v1/models").json()
    assert listing["object"] == "list"
    assert listing["data"] == [
        {
            "id": MODEL.id,
            "object": "model",
            "created": MODEL.created_s,
            "owned_by": "kvist",
            "root": MODEL.root,
            "max_model_len": 800,
        }
    ]


@pytest.mark.parametrize("path", ["owner/model", "owner%2Fmodel"])
def test_it_is_found_by_an_id_with_a_slash(app, path: str) -> None:
    assert ask(app, f"/v1/models/{path}").json() == ask(app, "/v1/models").json()["data"][0]


@pytest.mark.parametrize("path", ["other", "owner", "owner/model/more", "%00"])
def test_no_other_is(app, path: str) -> None:
    response = ask(app, f"/v1/models/{path}")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
