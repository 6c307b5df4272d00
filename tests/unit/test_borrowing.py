"""A text that stands in the transcript is pointed to, and comes back byte for byte."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.domain.borrowing import CHARS_MIN, borrow, is_long, lenders, part_texts, restore

LONG = "a long text, with é, 😀 and \x01 " * 20
TEXTS = {7: ["thought " * 50, LONG]}
WORDS = st.text(max_size=8) | st.sampled_from([LONG, LONG[3:], LONG[:300], TEXTS[7][0], "$entry"])
VALUES = st.recursive(
    WORDS | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(WORDS, inside, max_size=4),
    max_leaves=12,
)


def dumped(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(value=st.dictionaries(st.sampled_from(["text", "data", "$entry"]), VALUES, max_size=3))
def test_whatever_is_borrowed_comes_back_as_it_was(value: dict[str, object]) -> None:
    try:
        document = dumped(value)
    except TypeError:
        return  # an integer that JSON here has no room for
    lent = borrow(document, TEXTS)
    if lent is not None:
        assert len(lent) < len(document)
        assert lenders(lent) == {7}
        assert restore(lent, TEXTS) == document


def test_a_delta_is_found_where_it_says_that_it_begins() -> None:
    document = dumped({"messageId": "m", "delta": LONG[40:400], "offset": 40})
    assert borrow(document, TEXTS) == '{"messageId":"m","delta":{"$entry":[7,1,40,360]},"offset":40}'


def test_a_text_and_its_parts_are_found_by_their_beginning() -> None:
    document = dumped({"input": {"parts": [{"type": "text", "text": LONG[:CHARS_MIN]}]}})
    lent = borrow(document, TEXTS)
    assert lent == '{"input":{"parts":[{"type":"text","text":{"$entry":[7,1,0,256]}}]}}'
    assert borrow(dumped({"text": LONG[: CHARS_MIN - 1]}), TEXTS) is None
    assert borrow(dumped({"text": LONG + "!"}), TEXTS) is None


@pytest.mark.parametrize("value", [{"text": LONG, "args": {"$entry": [7, 1, 0, 9]}}, {"text": LONG, "$entry": 1}])
def test_words_of_others_that_look_like_a_place_are_left_alone(value: dict[str, object]) -> None:
    assert borrow(dumped(value), TEXTS) is None


def test_what_stands_deep_inside_is_left_alone() -> None:
    deep = {"a": {"b": {"c": {"d": {"text": LONG}}}}}
    assert not is_long(deep) and borrow(dumped(deep), TEXTS) is None
    assert is_long({"a": [{"text": LONG}]})


def test_texts_of_an_entry_are_those_of_its_parts() -> None:
    parts = [
        {"type": "thinking", "text": "t"},
        {"type": "toolCall", "args": "{}"},
        {"type": "toolResult", "content": "c"},
    ]
    assert part_texts(dumped({"parts": parts})) == ["t", "", "c"]
