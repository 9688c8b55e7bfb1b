import subprocess
import sys

import pytest
from fastapi import FastAPI

from fakes.serving import MODEL, SETTINGS, ManualClock, app_of, ask, completion
from fakes.tokenizer import ByteTokenizer
from kvist.server.app import create_app, lifecycle_of


def test_importing_it_needs_no_torch_and_no_engine_backend() -> None:
    program = (
        "import sys, kvist.server.app, kvist.server.listen\n"
        "print([name for name in ('torch', 'transformers', 'kvist.engine.backends') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/v1", "/", "/v1/embeddings"])
def test_what_is_not_served_is_a_404_of_openais_shape(start, path: str) -> None:
    response = ask(app_of(start(), ByteTokenizer()), path)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


def test_a_wrong_method_is_a_405(start) -> None:
    response = ask(app_of(start(), ByteTokenizer()), "/v1/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_scripts_of_other_origins_get_no_permission(start) -> None:
    response = ask(app_of(start(), ByteTokenizer()), "/v1/models", headers={"origin": "https://example.com"})
    assert "access-control-allow-origin" not in response.headers


def test_a_mistake_of_ours_is_a_500_without_details(start) -> None:
    class Broken(ByteTokenizer):
        def encode(self, text: str) -> list:
            raise ZeroDivisionError("the secret")

    response = ask(app_of(start(), Broken()), "/v1/completions", completion())
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in response.text


def test_seeds_are_drawn_from_the_system_unless_told_otherwise(start) -> None:
    engine = start()
    app = create_app(engine, ByteTokenizer(), SETTINGS, ManualClock())
    for _ in range(2):
        assert ask(app, "/v1/completions", completion()).json()["model"] == MODEL.id
    assert len({request.sampling.seed for request in engine.requests}) == 2


def test_only_our_own_apps_have_a_lifecycle(start) -> None:
    assert lifecycle_of(app_of(start(), ByteTokenizer())).is_accepting
    with pytest.raises(AttributeError):
        lifecycle_of(FastAPI())
