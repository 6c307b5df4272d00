"""The pages of `examples/` in a real browser, served from another origin than the service, as a stranger would."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.kit.browser import REQUIRED, Browser, chromium
from tests.kit.gauges import folded, until
from tests.kit.model_server import ModelServer, done, finish, hold, reset, text
from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory

ROOT = Path(__file__).resolve().parents[2]
SERVICE = "http://127.0.0.1:8420"
SHOWN = "document.querySelector('pre:last-of-type')?.textContent"
EVENT_SOURCES = """
window.sources = []
window.EventSource = class extends EventSource { constructor(...given) { super(...given); sources.push(this) } }
"""
"""Keeps a hand on what the page opens."""

TEXTS_SEEN = """
window.seen = []
new MutationObserver(() => {
  const shown = document.querySelector('pre').textContent
  if (shown) seen.push(shown)
}).observe(document.body, { subtree: true, childList: true })
"""
"""Every text that the page has shown."""


class Quiet(SimpleHTTPRequestHandler):
    """The standard library's file server, without its lines on the terminal."""

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The folder's origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """What a static server serves, and where."""
    chromium()
    files = tmp_path / "pages"
    files.mkdir()
    (files / "favicon.ico").touch()
    with serving(files) as origin:
        yield files, origin


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    chromium()
    async with Browser(tmp_path / "browser") as opened:
        yield opened


async def open_page(browser: Browser, folder: tuple[Path, str], one: Service) -> None:
    """The ten lines, with the service's address in place of the default one."""
    files, origin = folder
    page = (ROOT / "examples" / "page.html").read_text(encoding="utf-8")
    assert page.count(SERVICE) == 1
    (files / "page.html").write_text(page.replace(SERVICE, one.address), encoding="utf-8")
    await browser.open(f"{origin}/page.html")
    await browser.value(EVENT_SOURCES)


async def say(browser: Browser, words: str) -> None:
    """As a person does it: into the field, and Enter."""
    await browser.value("document.querySelector('input').select()")
    await browser.type(words)


async def until_shown(browser: Browser, words: str) -> None:
    await browser.until(f"{SHOWN} === {json.dumps(words)}")


async def test_a_person_sees_the_answer_grow(
    service: ServiceFactory, model: ModelServer, folder: tuple[Path, str], browser: Browser, tmp_path: Path
) -> None:
    """Each word before the model says the next; markup stays text; the page comes to rest when the run has ended."""
    words = ["one ", "<b>two</b> ", "drei \U0001f600 ", "four"]
    model.on("say it slowly", [*(step for n, word in enumerate(words) for step in (hold(f"{n}"), text(word))),
                               hold("end"), finish(), done()])  # fmt: skip
    async with service({"server.allowed_origins": [folder[1]]}) as one:
        await open_page(browser, folder, one)
        await say(browser, "say it slowly")
        for number in range(len(words)):
            await model.until_held(f"{number}")
            await until_shown(browser, "".join(words[:number]))
            model.release(f"{number}")
        await until_shown(browser, "".join(words))
        assert await browser.value("sources[0].readyState") == 1
        model.release("end")
        await browser.until("sources[0].readyState === EventSource.CLOSED")
        assert await browser.value(SHOWN) == "".join(words)
        assert await browser.value("document.querySelector('pre b')") is None
        await browser.screenshot(tmp_path / "page.png")
        assert (await browser.value("sources.length"), browser.complaints) == (1, [])
        await check_case(one, [(await one.runs())[0]["runId"]])


async def test_two_messages_have_a_text_each(
    service: ServiceFactory, model: ModelServer, folder: tuple[Path, str], browser: Browser
) -> None:
    model.on("the first", [text("first "), hold("first"), text("answer"), finish(), done()])
    model.on("the second", [text("second answer"), finish(), done()])
    async with service({"server.allowed_origins": [folder[1]]}) as one:
        await open_page(browser, folder, one)
        await say(browser, "the first")
        await until_shown(browser, "first ")
        await say(browser, "the second")
        await browser.until("sources.length === 2")
        model.release("first")
        await until_shown(browser, "second answer")
        assert await browser.value("document.querySelector('pre').textContent") == "first answer"


async def test_an_answer_that_was_taken_back_goes_from_the_page(
    service: ServiceFactory, model: ModelServer, folder: tuple[Path, str], browser: Browser
) -> None:
    """A model that answers with blanks is asked again, and the blanks are reset."""
    again = [text("now "), hold("again"), text("something"), finish(), done()]
    model.on("blank first", [text("     "), finish(), done()], again)
    async with service({"server.allowed_origins": [folder[1]]}) as one:
        await open_page(browser, folder, one)
        await say(browser, "blank first")
        await until_shown(browser, "now ")
        model.release("again")
        await until_shown(browser, "now something")


async def test_a_page_goes_on_when_the_service_was_killed(
    service: ServiceFactory, model: ModelServer, folder: tuple[Path, str], browser: Browser
) -> None:
    """The browser comes back by itself, and in the end the page has the answer that counts, and that alone."""
    model.on("killed once", [text("a half "), hold("killed"), finish(), done()], [text("a whole"), finish(), done()])
    async with service({"server.allowed_origins": [folder[1]]}) as one:
        await open_page(browser, folder, one)
        await say(browser, "killed once")
        await until_shown(browser, "a half ")
        await one.restart(hard=True)
        await until_shown(browser, "a whole")
        await browser.until("sources[0].readyState === EventSource.CLOSED")
        assert await browser.value("sources.length") == 1
        await check_case(one, [(await one.runs())[0]["runId"]])


async def test_a_folded_run_is_shown_whole(
    service: ServiceFactory, model: ModelServer, folder: tuple[Path, str], browser: Browser
) -> None:
    """As to a page that was away for long: it is given the run's answer in place of a new one."""
    words = [f"{number} \U0001f600 " for number in range(50)]
    model.on("fold this", [text(*words), finish(), done()])
    async with service({"server.allowed_origins": [folder[1]]}) as one:
        run_id = await one.run("fold this", "folded")
        await folded(one, run_id)
        await open_page(browser, folder, one)
        record = json.dumps(await one.record(run_id))
        await browser.value(f"window.fetch = async () => ({{ json: async () => ({record}) }})")
        await browser.value(TEXTS_SEEN)
        await say(browser, "whatever")
        await browser.until("sources[0]?.readyState === EventSource.CLOSED")
        assert await browser.value(SHOWN) == "".join(words)
        assert await browser.value("new Set(seen).size") == 1, "whole from the first event on"


async def test_what_goes_wrong_stands_on_the_page(
    service: ServiceFactory, model: ModelServer, folder: tuple[Path, str], browser: Browser
) -> None:
    """A refusal in its own words, and a run that failed with its error."""
    model.unchecked = True
    model.on("break off", [text("some words"), hold("broken"), reset()])
    async with service({"server.allowed_origins": [folder[1]]}) as one:
        await open_page(browser, folder, one)
        await say(browser, " ")
        await browser.until(f"{SHOWN}?.startsWith('#/message: ')")
        await say(browser, "break off")
        await until_shown(browser, "some words")
        model.release("broken")
        await browser.until("sources[0].readyState === EventSource.CLOSED")
        error = (await one.record((await one.runs())[0]["runId"]))["error"]["message"]
        await until_shown(browser, f"some words\n{error}")


async def test_a_page_that_is_not_listed_sees_nothing(
    service: ServiceFactory, folder: tuple[Path, str], browser: Browser
) -> None:
    async with service({"server.allowed_origins": ["http://127.0.0.1:1"]}) as one:
        await open_page(browser, folder, one)
        await say(browser, "hello")
        await until(lambda: any("blocked by CORS" in line for line in browser.complaints), "the browser complains")
        assert await browser.value(SHOWN) == "" and await one.runs() == []


async def test_the_example_that_follows_through_everything_works_from_another_origin(
    service: ServiceFactory, model: ModelServer, folder: tuple[Path, str], browser: Browser
) -> None:
    files, origin = folder
    (files / "follow.js").write_bytes((ROOT / "examples" / "follow.js").read_bytes())
    async with service({"server.allowed_origins": [origin]}) as one:
        await open_page(browser, folder, one)
        model.on("follow this", [text("followed"), finish(), done()])
        run_id = await one.run("follow this", "followed")
        url = f"{one.address}/api/v1/runs/{run_id}/events"
        ended = await browser.value(
            "import('./follow.js').then(({ follow }) => new Promise(ended => "
            f"follow({json.dumps(url)}, ['assistant'], (name, event) => name === 'done' && ended(event.data))))"
        )
        assert ended["reply"]["payloads"][0]["text"] == "followed"


def test_a_browser_that_is_missing_is_a_reason_to_skip_or_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="make system-deps"):
        chromium()
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="make system-deps"):
        chromium()


def test_the_readme_shows_the_page_as_it_is() -> None:
    shown = re.search(r"```html\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    assert shown.group(1) == (ROOT / "examples" / "page.html").read_text(encoding="utf-8")
