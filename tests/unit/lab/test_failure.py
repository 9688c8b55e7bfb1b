from hypothesis import given
from hypothesis import strategies as st

from kvist.base.errors import WireError
from kvist.lab.failure import CallError, excerpt


@given(text=st.text(max_size=600), length=st.integers(1, 400))
def test_an_excerpt_is_short_printable_and_one_line(text: str, length: int) -> None:
    shown = excerpt(text, length)
    assert len(shown) <= length + 3
    assert shown.isprintable()


def test_a_failed_call_says_its_kind_and_status() -> None:
    error = CallError("busy", kind="http_503", status=503)
    assert isinstance(error, WireError)
    assert (str(error), error.kind, error.status) == ("busy", "http_503", 503)
    assert CallError("gone", kind="connect").status is None
