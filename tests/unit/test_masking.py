"""Secrets are masked by value, by the name of their key, and by their form; and nothing else is."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.masking import Masker, is_secret_key
from app.tools.contract import Image, Text, ToolOutput
from app.tools.sanitize import clean, model_text, wire_text

KEY = 'ab"cd\\ef/gh+ij=='
MASKER = Masker([KEY, "sk-test-0123456789", "tiny"])


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"x {KEY} y", "x *** y"),
        ("key=ab%22cd%5Cef%2Fgh%2Bij%3D%3D", "key=***"),
        (orjson.dumps({"k": KEY}).decode(), '{"k":"***"}'),
        ("sk-test-0123456789sk-test-0123456789", "******"),
        ("tiny words stay", "tiny words stay"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer ***"),
        ('"authorization": "Basic dXNlcjpwYXNz"', '"authorization": "Basic ***"'),
        ("curl -H 'Bearer 0123456789abcdef0'", "curl -H 'Bearer ***'"),
        ("https://me:pass@host/x", "https://me:***@host/x"),
        ("https://h/x?a=1&api_key=abcdef&b=2", "https://h/x?a=1&api_key=***&b=2"),
        ("ghp_0123456789abcdefghij0123", "***"),
        ("AKIAABCDEFGHIJKLMNOP", "***"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeK", "***"),
        ("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\nafter", "***\nafter"),
        ("the bearer of bad news", "the bearer of bad news"),
        ("https://host:8080/path@x", "https://host:8080/path@x"),
        ("a key is a key", "a key is a key"),
    ],
)
def test_texts(text: str, masked: str) -> None:
    assert MASKER.text(text) == masked


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "Password",
        "DB_PASSWORD",
        "api_key",
        "apiKey",
        "x-api-key",
        "token",
        "accessToken",
        "refresh_token",
        "Authorization",
        "clientSecret",
        "private_key",
        "cookie",
        "Set-Cookie",
        "credentials",
        "X-Auth-Token",
        "signature",
    ],
)
def test_keys_of_secrets(key: str) -> None:
    assert is_secret_key(key)
    assert MASKER.args({key: "x"}) == {key: "***"} and MASKER.args({key: {"deep": [1]}}) == {key: "***"}
    assert MASKER.args({key: None}) == {key: None}


@pytest.mark.parametrize(
    "key",
    ["maxTokens", "tokens", "tokenCount", "author", "keyboard", "key", "next_token", "secretary", "path", "monkey"],
)
def test_keys_of_other_things(key: str) -> None:
    assert MASKER.args({key: "value"}) == {key: "value"}


def test_arguments_are_masked_at_every_depth() -> None:
    value: dict[str, Any] = {"a": [{"password": 1, "b": f"-{KEY}-"}], KEY: 2, "n": 3, "t": True}
    assert MASKER.args(value) == {"a": [{"password": "***", "b": "-***-"}], "***": 2, "n": 3, "t": True}
    deep: Any = "end"
    for _ in range(200):
        deep = [deep]
    assert "end" not in orjson.dumps(MASKER.args(deep)).decode()


ESCAPED = [
    ("\x1b[31mred\x1b[0m", "red"),
    ("\x1b]0;title\x07text", "text"),
    ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("a\r\nb\rc", "a\nb\nc"),
    ("ab\x08c", "ac"),
    ("x\x00y\x07\x9bz", "xy"),
    ("\u202eevil\u202c", "evil"),
    ("half \ud83d", "half \ufffd"),
    ("\x1bPdcs\x1b\\after", "after"),
    ("tab\tstays", "tab\tstays"),
]


@pytest.mark.parametrize(("raw", "clear"), ESCAPED)
def test_control_characters_are_taken_out(raw: str, clear: str) -> None:
    assert clean(ToolOutput((Text(raw),)), MASKER, 1_000).text == clear


def test_a_secret_cannot_hide_behind_control_characters() -> None:
    hidden = "sk-\x1b[0mtest-\x000123\u202e456789"
    assert clean(ToolOutput((Text(hidden),)), MASKER, 1_000).text == "***"


def test_data_as_text_and_images_become_notes() -> None:
    uri = "see data:image/png;base64," + "A" * 5_000 + " there"
    assert clean(ToolOutput((Text(uri),)), MASKER, 10_000).text == "see [image/png, 5,022 characters: left out] there"
    lines = "\n".join(["QUJD" * 19] * 100)
    assert "base64" in clean(ToolOutput((Text(lines),)), MASKER, 100_000).text
    assert clean(ToolOutput((Text("word " * 2_000),)), MASKER, 100_000).text == "word " * 2_000
    png = Image("image/png", b"\x89PNG\r\n\x1a\n" + bytes(100))
    text = clean(ToolOutput((Text("two"), png, Image("image/jpeg", b"no image"))), MASKER, 1_000).text
    assert text.startswith("two\n[image/png, 108 bytes: left out") and "image/jpeg, which it is not, 8 bytes" in text


_NASTY = st.text(
    st.sampled_from(
        ["a", "\n", " ", "\x1b", "[", "]", "m", "\x07", "\x08", "\r", "\0", "日", "😀", "\ud800", "\x9b", "s", "-"]
    )
)


@given(pieces=st.lists(st.one_of(_NASTY, st.just("sk-test-0123456789")), max_size=30), kept=st.integers(100, 400))
def test_whatever_comes_is_clean_bounded_and_stays_so(pieces: list[str], kept: int) -> None:
    once = clean(ToolOutput((Text("".join(pieces)),)), MASKER, kept)
    assert len(once.text.encode()) <= kept
    assert not any(c in once.text for c in "\x1b\x07\x08\r\0\x9b\ud800")
    assert "sk-test-0123456789" not in once.text
    again = clean(ToolOutput((Text(once.text),)), MASKER, kept)
    assert again.text == once.text


@given(at=st.integers(0, 600), kept=st.sampled_from([200, 300, 500]))
def test_no_half_of_a_secret_is_left_at_a_cut(at: int, kept: int) -> None:
    text = "." * at + "sk-test-0123456789" + "." * (600 - at)
    cleaned = clean(ToolOutput((Text(text),)), MASKER, kept)
    assert cleaned.truncated and "sk-" not in cleaned.text and "6789" not in cleaned.text


def test_a_large_result_keeps_both_ends() -> None:
    text = "begin\n" + "middle\n" * 1_000_000 + "end"
    cleaned = clean(ToolOutput((Text(text),)), MASKER, 50_000)
    assert cleaned.truncated and len(cleaned.text.encode()) <= 50_000
    assert cleaned.text.startswith("begin\n") and cleaned.text.endswith("end") and "omitted" in cleaned.text


def test_readers_see_the_head_and_how_much_is_missing() -> None:
    assert wire_text("short", 100) == ("short", False)
    shown, cut = wire_text("x" * 1_000, 100)
    assert cut and len(shown) == 100 and shown.endswith("[... 929 characters omitted]")


def test_the_model_sees_the_end_when_it_says_how_things_ended() -> None:
    plain = model_text("line\n" * 10_000, 4_000)
    assert len(plain) <= 4_000 and "omitted" in plain and plain.rstrip().endswith("...]")
    failed = model_text("line\n" * 10_000 + "Error: it broke\n", 4_000)
    assert len(failed) <= 4_000 and failed.rstrip().endswith("Error: it broke")
    assert model_text("x" * 3_000, 100).count("x") >= 1_800, "at least 2,000 characters are kept"


@pytest.mark.parametrize(
    "hostile",
    [
        "a",
        "data:,",
        "\x1b]",
        "\x9d",
        "://a:a",
        "eyJaaaaaaaa-",
        "A" * 4095 + " ",
        "-----BEGIN PRIVATE KEY-----",
        "a\x08",
        "sk-",
        "Authorization: ",
        "bearer ",
        "?key=",
        "B" * 59 + "\n",
        "\x1b[0",
        "://:",
        "data:a/b;",
    ],
)
def test_time_is_in_proportion_to_the_text(hostile: str) -> None:
    """Four times the text may take more than four times as long on a busy machine, but not sixteen times."""

    def seconds(size: int) -> float:
        text = hostile * (size // len(hostile))
        begun = time.process_time()
        clean(ToolOutput((Text(text),)), MASKER, 16_000_000)
        return time.process_time() - begun

    seconds(10_000)
    small, large = min(seconds(100_000) for _ in range(3)), min(seconds(400_000) for _ in range(3))
    assert large < 12 * small + 0.05, (small, large)
