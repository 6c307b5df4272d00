"""What is kept out of what is shown: secrets by value, by key and by form, and that ordinary words stay."""

from __future__ import annotations

import base64
import html
import json
import time
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.masking import Masker, is_secret_key

SECRET = 'hunter2/se cr"et\\é'
MASKER = Masker(["short", SECRET, "plain-secret-value", "plain-secret-value-longer"])
BARE = Masker([])


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        quote(SECRET, safe=""),
        quote(SECRET),
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        json.dumps(SECRET)[1:-1].replace("/", "\\/"),
        html.escape(SECRET),
        "plain-secret-value",
    ],
)
def test_a_value_is_masked_in_every_form_in_which_it_is_written(written: str) -> None:
    assert MASKER.text(f"before {written} after {written}") == "before *** after ***"


@pytest.mark.parametrize("before", ["", "u", "us", "use", "user:"])
def test_a_value_is_masked_inside_base64_wherever_it_begins(before: str) -> None:
    secret = "plain-secret-value"
    encoded = base64.b64encode(f"{before}{secret} and more".encode()).decode()
    masked = MASKER.text(encoded)
    assert "***" in masked
    left = "".join(base64.b64decode(part[: len(part) // 4 * 4]).decode("latin-1") for part in masked.split("***"))
    assert "ain-secret-val" not in left


def test_the_longest_value_is_masked_first_and_short_ones_are_not_masked() -> None:
    assert MASKER.text("plain-secret-value-longer") == "***"
    assert MASKER.text("a short text") == "a short text"


def test_a_value_is_known_without_the_line_end_that_its_file_has() -> None:
    assert Masker(["from-a-file\n"]).text("key=from-a-file.") == "key=***."


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Bearer xyz", "Authorization: Bearer ***"),
        ("authorization: Basic dXNlcjpwYXNz\nHost: h", "authorization: Basic ***\nHost: h"),
        ("Proxy-Authorization: abc123def", "Proxy-Authorization: ***"),
        ('{"Authorization": "Bearer xyz", "a": 1}', '{"Authorization": "Bearer ***", "a": 1}'),
        ('Authorization: Digest username="a", response="b"\nx', "Authorization: Digest ***\nx"),
        ("curl -H 'Authorization: token abc' http://h", "curl -H 'Authorization: token ***' http://h"),
        ("X-Api-Key: abcdef123", "X-Api-Key: ***"),
        ("bearer abcdefghijklmnop", "bearer ***"),
        ("https://user:pass@host/x", "https://user:***@host/x"),
        ("postgres://user:p@ss@host/x", "postgres://user:***@host/x"),
        ("redis://:pass@host", "redis://:***@host"),
        ("https://h/?a=1&api_key=k&b=2", "https://h/?a=1&api_key=***&b=2"),
        ("https://h/?access_token=t#f", "https://h/?access_token=***#f"),
        ("https://h/?X-Amz-Signature=abc&x=1", "https://h/?X-Amz-Signature=***&x=1"),
        ("https://h/?key=abcdefgh", "https://h/?key=***"),
        ("k sk-abcdefghijklmnop1234 k", "k *** k"),
        ("k sk-ant-api03-abcdefgh_ijkl k", "k *** k"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "***"),
        ("github_pat_11ABCDEFG0abcdefghijkl_mnop", "***"),
        ("xoxb-123456789012-abcdef", "***"),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
        ("AIzaSyA-abcdefghijklmnopqrstuvwxyz01234", "***"),
        ("t=eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl;", "t=***;"),
        ("t=eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.", "t=***"),
        ("a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\nab-c\n-----END RSA PRIVATE KEY-----\nb", "a\n***\nb"),
        ("-----BEGIN PRIVATE KEY-----\\nMIIE\\n-----END PRIVATE KEY-----", "***"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n" + ("A" * 64 + "\n") * 3 + "cut", "***\ncut"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, masked: str) -> None:
    assert BARE.text(text) == masked
    assert BARE.text(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "risk-assessment-of-the-whole-thing",
        "the bearer of bad news, authorization is required",
        "Authorization: Bearer <your token>",
        "Authorization: Bearer $TOKEN",
        "https://h/?page=2&key=1&tokens=5#token",
        "http://host:8080/a@b",
        "grep 'BEGIN PUBLIC KEY' x",
        "eyJ is how they begin",
        "print(f'{key}={value}')",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert BARE.text(text) == text


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "Password",
        "db_password",
        "passwd",
        "PWD",
        "secret",
        "client-secret",
        "clientSecret",
        "token",
        "access_token",
        "refreshToken",
        "id_token",
        "idToken",
        "sessionToken",
        "session_token",
        "X-Auth-Token",
        "github_token",
        "apikey",
        "api_key",
        "API-KEY",
        "x-api-key",
        "apiKeys",
        "authorization",
        "Authorization",
        "Proxy-Authorization",
        "auth",
        "credential",
        "credentials",
        "awsCredentials",
        "privateKey",
        "private_key",
        "secretAccessKey",
        "cookie",
        "Cookie",
        "Set-Cookie",
        "signature",
        "X-Hub-Signature-256",
        "bearer",
        "passphrase",
        "jwt",
    ],
)
def test_keys_that_are_named_like_a_secret(key: str) -> None:
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "maxTokens",
        "max_tokens",
        "tokenCount",
        "token_count",
        "totalTokens",
        "tokens",
        "tokenizer",
        "author",
        "authors",
        "authority",
        "keyboard",
        "key",
        "keys",
        "sessionKey",
        "session_key",
        "publicKey",
        "primary_key",
        "idempotencyKey",
        "nextPageToken",
        "next_token",
        "page_token",
        "passed",
        "bypass",
        "secretary",
        "cookieCount",
        "signatureHelp",
        "credentialed",
        "path",
        "url",
    ],
)
def test_keys_that_only_look_alike(key: str) -> None:
    assert not is_secret_key(key)


def test_arguments_are_copied_with_values_under_secret_keys_masked_whatever_they_are() -> None:
    args = {
        "password": {"deep": [1]},
        "token": None,
        "api_key": 12345,
        "headers": [{"Authorization": "Bearer x", "Accept": "text/html"}],
        "url": "https://u:pw@h/",
        "plain-secret-value": "plain-secret-value",
        "maxTokens": 5,
        "flag": True,
    }
    before = json.dumps(args)
    assert MASKER.args(args) == {
        "password": "***",
        "token": None,
        "api_key": "***",
        "headers": [{"Authorization": "***", "Accept": "text/html"}],
        "url": "https://u:***@h/",
        "***": "***",
        "maxTokens": 5,
        "flag": True,
    }
    assert json.dumps(args) == before


def test_what_is_too_deep_is_left_out() -> None:
    value: Any = "plain-secret-value"
    for _ in range(5_000):
        value = [value]
    masked = MASKER.args(value)
    depth = 0
    while isinstance(masked, list):
        masked, depth = masked[0], depth + 1
    assert (masked, depth) == ("...", 50)


@given(
    st.lists(
        st.sampled_from(
            [
                "plain-secret-value",
                "Authorization: ",
                "Bearer ",
                "://",
                ":",
                "@",
                "?token=",
                "sk-",
                "a" * 20,
                "eyJ",
                ".",
                " ",
                "\n",
                "*",
                "***",
                "-----BEGIN PRIVATE KEY-----",
                "-----END PRIVATE KEY-----",
                '"',
                "key",
                "é",
            ]
        ),
        max_size=20,
    ).map("".join)
)
def test_masking_what_is_masked_changes_nothing_and_no_value_is_left(text: str) -> None:
    once = MASKER.text(text)
    assert MASKER.text(once) == once
    assert "plain-secret-value" not in once


HOSTILE = (
    "://a:b",
    "://a:",
    "eyJaaaaaaaaaa.",
    "eyJ",
    "-eyJaaaaaaaa.aaa",
    "sk-",
    "xsk-aaaaaaaaaaaaaaaaaaaaaaaaaa ",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\n" + "A" * 64 + "\n",
    "-----BEGIN A A A A A A A PRIVATE KEY ",
    "authorization:",
    "authorization: bearer ",
    "authorization: digest ",
    "xoxb-",
    "?key=",
    "&token=token=",
    "bearer ",
    "sk- ghp_ :// token= bearer authorization eyJ private key x-api-key: ",
)


@pytest.mark.parametrize("unit", HOSTILE)
def test_time_grows_with_the_text_and_no_faster(unit: str) -> None:
    small = (unit * (250_000 // len(unit) + 1))[:250_000]

    def seconds(text: str) -> float:
        def once() -> float:
            begun = time.process_time()
            MASKER.text(text)
            return time.process_time() - begun

        return min(once(), once())

    # Four times the text takes four times as long; were it quadratic, sixteen times.
    assert seconds(small * 4) < 9 * max(seconds(small), 0.004)


def test_five_megabytes_of_one_key_without_an_end_are_gone_through() -> None:
    text = "-----BEGIN PRIVATE KEY-----" + "\n" * 5_000_000
    assert len(BARE.text(text)) > 4_900_000
