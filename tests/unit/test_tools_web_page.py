"""What people read of a page is kept, what they do not see is not, and no page takes more than its share of time."""

from __future__ import annotations

import time
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.tools.web_page import page_text

MODES: tuple[Literal["markdown", "text"], ...] = ("markdown", "text")

PAGE = """<!DOCTYPE html><html><head><title>The &lt;title&gt;
  of it</title><style>p { color: red }</style><meta charset=utf-8></head>
<body><!-- a comment --><script>if (a < b) evil()</script>
<h1>Heading</h1><p>Hello <b>big</b> <a href="/x?a=1&amp;b=2">world</a> &amp; all
of it.</p><ul><li>one<li>two</ul><pre>a
  b</pre><table><tr><th>A<th>B<tr><td>1<td>2</table></body></html>"""


def test_a_page_as_markdown() -> None:
    assert page_text(PAGE, "markdown", 20_000) == (
        (
            "The <title> of it\n\n# Heading\n\nHello **big** [world](/x?a=1&b=2) & all of it.\n\n* one\n* two\n\n"
            "```\na\n  b\n```\n\n| A | B |\n| --- | --- |\n| 1 | 2 |"
        ),
        False,
    )


def test_a_page_as_text() -> None:
    assert page_text(PAGE, "text", 20_000) == (
        "The <title> of it\n\nHeading\n\nHello big world & all of it.\n\none\ntwo\n\na\n  b\n\nA B\n1 2",
        False,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "unseen",
    [
        "<script>HIDDEN</script>",
        "<SCRIPT type=x>'</b>' + HIDDEN</SCRIPT >",
        "<style>HIDDEN</style>",
        "<template><p>HIDDEN</p></template>",
        "<noscript>HIDDEN</noscript>",
        "<!-- HIDDEN <p> -->",
        "<!--> shown <!--HIDDEN-->",
        "<?php HIDDEN ?>",
        "<div hidden>HIDDEN<p>HIDDEN<b>HIDDEN</div>",
        "<p hidden>HIDDEN<p>",
        "<div HIDDEN=''>HIDDEN</div>",
        "<div aria-hidden=true>HIDDEN</div>",
        "<div style='color: red; Display : None'>HIDDEN</div>",
        '<span style="visibility:hidden">HIDDEN</span>',
        "<div hidden><div><div>HIDDEN</div></div>HIDDEN</div>",
        "<svg><title>HIDDEN</title><text>HIDDEN</text></svg>",
        "<iframe>HIDDEN</iframe>",
        "<object>HIDDEN</object>",
        "<b data-x='HIDDEN > HIDDEN'>shown</b>",
        '<a href="javascript:HIDDEN">shown</a>',
        '<a href=" data:text/html,HIDDEN">shown</a>',
        '<img src="data:image/png;base64,HIDDEN">',
        "<input type=hidden value=HIDDEN>",
    ],
)
def test_what_people_do_not_see_is_left_out(unseen: str, mode: Literal["markdown", "text"]) -> None:
    text, _ = page_text(f"<p>before</p>{unseen}<p>after</p>", mode, 20_000)
    assert "HIDDEN" not in text
    assert text.startswith("before")
    assert text.endswith("after")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "shown",
    [
        "a < b",
        "a <3 b",
        "1 < 2 > 1",
        "AT&T",
        "&unknown;",
        "<svg/>x",
        "</p></x></b>x",
        "<b hidden-not>x</b>",
        "<div aria-hidden=false>x</div>",
        "<textarea>x</textarea>",
        "<x-y>x</x-y>",
        "&#99999999999999999999;x",
        "&#" + "9" * 5_000 + ";x",
    ],
)
def test_what_people_see_stays(shown: str, mode: Literal["markdown", "text"]) -> None:
    text, _ = page_text(f"<p>before</p>{shown}<p>after</p>", mode, 20_000)
    plain = shown if shown[0] not in "<&" or shown == "&unknown;" else "x"
    assert plain.replace("&lt;", "<") in text
    assert text.startswith("before")
    assert text.endswith("after")


@pytest.mark.parametrize("mode", MODES)
def test_the_beginning_is_kept_and_that_there_was_more_is_said(mode: Literal["markdown", "text"]) -> None:
    page = "<p>" + "</p><p>".join(f"paragraph {number}" for number in range(10_000))
    text, cut = page_text(page, mode, 1_000)
    assert cut
    assert len(text) == 1_000
    assert text.startswith("paragraph 0\n\nparagraph 1\n\n")
    assert page_text("<p>short</p>", mode, 1_000) == ("short", False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tag", ["div", "b", "blockquote", "ul><li", "table><tr><td", "span"])
def test_pages_that_are_nested_deep_keep_their_text(tag: str, mode: Literal["markdown", "text"]) -> None:
    text, _ = page_text(f"<{tag}>" * 30_000 + "core" + "</" + tag + ">" * 30_000, mode, 20_000)
    assert "core" in text


def test_what_is_nested_deep_costs_the_rest_of_the_page_nothing() -> None:
    text, _ = page_text(
        "<h1>Heading</h1>" + "<div>" * 30_000 + "core" + "</div>" * 30_000 + "<h2>End</h2>", "markdown", 999
    )
    assert text == "# Heading\n\ncore\n\n## End"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "open_end", ['<a x="lost > lost', "<a x='lost > lost", "<!-- lost > lost", "<a lost", "<script>lost</b>"]
)
def test_what_never_ends_is_dropped(open_end: str, mode: Literal["markdown", "text"]) -> None:
    assert page_text(f"<p>before</p>{open_end}", mode, 999) == ("before", False)


@pytest.mark.parametrize("mode", MODES)
def test_bare_words_between_marks_keep_their_blanks(mode: Literal["markdown", "text"]) -> None:
    text, _ = page_text("<span>one</span> <span>two</span><br>three<div>four</div>five", mode, 1_000)
    assert text.split() == ["one", "two", "three", "four", "five"]
    assert "one two" in text


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "<p>",
                "</p>",
                "<b",
                ">",
                "<",
                "</",
                "<!--",
                "-->",
                "<script>",
                "</script>",
                "<li>",
                "<ul>",
                "</ul>",
                "<pre>",
                "<td>",
                "<table>",
                "</table>",
                "<div hidden>",
                "</div>",
                "<svg/>",
                "<br>",
                "&",
                "&#x",
                "&#1114112;",
                "text",
                " ",
                "\n",
                '"',
                "'",
                "=",
                "/",
                "<a href=",
                "<title>",
                "</title>",
                "<ol start=3>",
                "\x00",
                "�",
                "é",
            ]
        ),
        max_size=30,
    ).map("".join),
    st.sampled_from(MODES),
    st.integers(1, 50),
)
def test_no_page_breaks_it(page: str, mode: Literal["markdown", "text"], chars: int) -> None:
    text, _ = page_text(page, mode, chars)
    assert len(text) <= chars


@pytest.mark.parametrize("mode", MODES)
def test_a_cell_behind_the_end_of_the_room_adds_nothing(mode: Literal["markdown", "text"]) -> None:
    assert page_text("abc<td>", mode, 1) == ("a", True)


HOSTILE = [
    "<", "<a ", '<a x="', "<!--", "<![CDATA[", "</", "<a a=1 a=2 ", "<script></", "<textarea>", "<a\n", "<a =", "<div>",
    "<b><i></b>", "<ul><li>", "<p hidden>", "</b></i>", "<b></b>", "&#x", "&#1", "<title>", "<a x='", "<i></b>",
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("unit", HOSTILE)
def test_time_grows_with_the_page_and_no_faster(unit: str, mode: Literal["markdown", "text"]) -> None:
    page_text("<p>load the libraries</p>", mode, 100)
    small = (unit * (60_000 // len(unit) + 1))[:60_000]

    def seconds(page: str) -> float:
        def once() -> float:
            begun = time.process_time()
            page_text(page + "core", mode, 20_000)
            return time.process_time() - begun

        return min(once(), once())

    # Four times the page takes four times as long; were it quadratic, sixteen times.
    assert seconds(small * 4) < 9 * max(seconds(small), 0.02)


@pytest.mark.parametrize("blank", [" ", "\n", " \n", "&nbsp;", "<br>", "\N{EM SPACE}", " <b></b>", "<i>&nbsp;</i>"])
@pytest.mark.parametrize("around", ["<p>{}</p>", "<pre>{}</pre>", "<blockquote><ul><li>{}", "<table><tr><td>{}"])
def test_white_space_without_end_takes_no_time_and_hides_nothing(blank: str, around: str) -> None:
    page_text("<p>load the libraries</p>", "markdown", 100)
    begun = time.process_time()
    text, _ = page_text(around.format("before" + blank * 19_000 + "after"), "markdown", 20_000)
    assert "before" in text
    assert "after" in text
    assert (
        time.process_time() - begun < 5
    )  # it is a tenth of a second; without a bound on blanks it is most of a minute
