"""From names to providers: what is refused before any request, what is built once, and what is loaded when."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from app.errors import SettingsError
from app.providers.contract import ProviderError
from app.providers.demo import DemoProvider
from app.providers.endpoint import Endpoint, is_local
from app.providers.resolve import ModelRow, Providers
from app.settings import Provider, Settings
from tests.kit.model_server import ModelServer
from tests.unit.test_providers_support import KEY, asking, settings_for, tell

ROOT = Path(__file__).resolve().parents[2]


def providers(agents: dict[str, Any] | None = None, **tables: Any) -> Providers:
    return Providers(
        Settings.model_validate({"state_dir": Path("unused"), "providers": tables, "agents": agents or {}})
    )


LOCAL = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}


@pytest.mark.parametrize(
    ("model", "tables", "code", "words"),
    [
        ("nowhere:x", {}, "model-not-found", "no provider 'nowhere'"),
        ("", {}, "model-not-found", "no provider ''"),
        ("local", {"local": LOCAL}, "model-not-found", "write local:MODEL"),
        ("local:", {"local": LOCAL}, "model-not-found", "write local:MODEL"),
        ("openai:gpt-5", {}, "provider-auth", "OPENAI_API_KEY"),
        ("anthropic:claude", {}, "provider-auth", "ANTHROPIC_API_KEY"),
        ("mine:gpt-5", {"mine": {"kind": "openai"}}, "provider-auth", "providers.mine.api_key"),
        (
            "mine:x",
            {"mine": {"kind": "openai", "base_url": "https://API.OpenAI.com/v1"}},
            "provider-auth",
            "providers.mine",
        ),
    ],
)
async def test_what_cannot_work_is_refused_without_a_request(
    model: str, tables: dict[str, Any], code: str, words: str
) -> None:
    subject = providers(**tables)
    problem = subject.known(model)
    assert problem is not None
    assert words in problem
    with pytest.raises(ProviderError) as caught:
        await subject.resolve(model)
    assert (caught.value.code, str(caught.value), caught.value.retryable) == (code, problem, False)


@pytest.mark.parametrize(
    ("model", "tables"),
    [
        ("demo", {}),
        ("demo:anything", {}),
        ("scripted", {}),
        ("local:x", {"local": LOCAL}),
        ("box:x", {"box": {"kind": "openai", "base_url": "http://gpu-box:8000/v1"}}),
        ("claude:x", {"claude": {"kind": "anthropic", "base_url": "http://127.0.0.1:1"}}),
        ("openai:gpt-5", {"openai": {"kind": "openai", "api_key": KEY}}),
    ],
)
def test_what_can_work_is_known(model: str, tables: dict[str, Any]) -> None:
    assert providers(**tables).known(model) is None


async def test_a_model_is_built_once_and_a_provider_has_one_client(model: ModelServer) -> None:
    subject = Providers(settings_for(model.base_url))
    made = await asyncio.gather(*(subject.resolve("local:a") for _ in range(20)))
    assert len(set(map(id, made))) == 1
    assert made[0].name == "local:a"
    other = await subject.resolve("local:b")
    assert other is not made[0]
    for provider in (made[0], other, made[0]):
        assert (await tell(provider)).text == "hello"
    assert model.connections == 1
    assert [request.body["model"] for request in model.requests] == ["a", "b", "a"]
    await subject.close()


async def test_demo_and_scripted_need_nothing() -> None:
    subject = providers()
    assert isinstance(await subject.resolve("demo"), DemoProvider)
    assert (await tell(await subject.resolve("scripted"), asking("say it back"))).text == "say it back"
    await subject.close()


def test_models_are_those_of_the_agents_and_the_demo() -> None:
    agents = {"defaults": {"model": "local:a"}, "writer": {"model": "fake"}, "twin": {"model": "local:a"}}
    tables = {"local": LOCAL, "fake": {"kind": "scripted"}, "unused": LOCAL}
    assert providers(agents, **tables).models() == (
        ModelRow("local:a", "local", "openai", False),
        ModelRow("fake", "fake", "scripted", True),
        ModelRow("demo", "demo", "demo", True),
    )
    assert providers().models() == (ModelRow("demo", "demo", "demo", True),)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"kind": "openai"}, 120),
        ({"kind": "anthropic"}, 120),
        ({"kind": "openai", "base_url": "https://openrouter.ai/api/v1"}, 120),
        ({"kind": "openai", "base_url": "https://eu.api.openai.com/v1"}, 120),
        ({"kind": "openai", "base_url": "https://models.example.org/v1"}, 300),
        ({"kind": "openai", "base_url": "https://notopenai.com/v1"}, 300),
        ({"kind": "openai", "base_url": "https://openai.com.example.org/v1"}, 300),
        ({"kind": "openai", "base_url": "http://127.0.0.1:11434/v1"}, 300),
        ({"kind": "openai", "base_url": "http://[::1]:11434/v1"}, 300),
        ({"kind": "openai", "base_url": "http://192.168.1.5:8000"}, 300),
        ({"kind": "openai", "timeout_seconds": 900}, 900),
        ({"kind": "openai", "base_url": "http://127.0.0.1:1", "timeout_seconds": 2.5}, 2.5),
        ({"kind": "demo"}, 300),
    ],
)
def test_idle_time_by_the_class_of_the_address(fields: dict[str, Any], seconds: float) -> None:
    assert providers(one=fields).idle_timeout_s("one:x") == seconds


@pytest.mark.parametrize(
    ("host", "local"),
    [("localhost", True), ("a.localhost", True), ("127.0.0.1", True), ("::1", True), ("10.1.2.3", True),
     ("169.254.1.1", True), ("8.8.8.8", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_local_hosts(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_an_endpoint_shows_no_key() -> None:
    endpoint = Endpoint.of("x", Provider.model_validate({"kind": "openai", "api_key": KEY}))
    assert endpoint.api_key == KEY
    assert KEY not in repr(endpoint)


# scripts


def test_a_wrong_script_is_told_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps([{"parts": [{"text": "a"}]}, {"parts": [{"texts": "b"}]}]))
    with pytest.raises(SettingsError, match=r"script\.json: \[1\]\.parts\[0\]\.texts is not known"):
        providers(fake={"kind": "scripted", "script": str(path)})


async def test_a_script_is_played(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps([{"parts": [{"text": "from the script"}]}]))
    subject = providers(fake={"kind": "scripted", "script": str(path)})
    assert (await tell(await subject.resolve("fake"))).text == "from the script"
    assert (await tell(await subject.resolve("fake:named"))).text == "from the script"


# loading


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


PREPARED = """
import asyncio, sys, time
from pathlib import Path
from app.providers.resolve import Providers
from app.settings import Settings
def loaded():
    return [name for name in ("pydantic_ai", "openai", "anthropic", "httpx2") if name in sys.modules]
def providers(model, **fields):
    tables = {"local": {"base_url": "http://127.0.0.1:1", **fields}} if fields else {}
    return Providers(Settings(state_dir=Path("x"), providers=tables, agents={"defaults": {"model": model}}))
"""


def test_nothing_is_loaded_before_it_is_needed() -> None:
    code = """
subject = providers("local:x", kind="openai")
subject.known("local:x"), subject.models(), subject.idle_timeout_s("local:x")
asyncio.run(providers("demo").warm())
asyncio.run(providers("demo").resolve("demo"))
print(loaded())
"""
    assert run(PREPARED + code) == "[]"


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_warming_loads_the_agents_vendor_off_the_loop(kind: str) -> None:
    code = f"""
async def main():
    subject = providers("local:x", kind="{kind}")
    turns = 0
    async def turn():
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1
    turning = asyncio.create_task(turn())
    warming = asyncio.create_task(subject.warm())
    early = asyncio.create_task(subject.resolve("local:x"))  # comes before the layer is there, and waits for it
    await asyncio.gather(warming, early)
    begun = time.perf_counter()
    await subject.warm()
    await subject.resolve("local:y")
    print(turns > 10, time.perf_counter() - begun < 0.2, "{kind}" in loaded(), len(loaded()))
    turning.cancel()
    await subject.close()
asyncio.run(main())
"""
    assert run(PREPARED + code) == "True True True 3"


async def test_an_early_call_that_is_cancelled_leaves_the_layer_loading(model: ModelServer) -> None:
    subject = Providers(settings_for(model.base_url))
    task = asyncio.create_task(subject.resolve("local:a"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    begun = time.monotonic()
    assert (await tell(await subject.resolve("local:a"))).text == "hello"
    assert time.monotonic() - begun < 20
    await subject.close()
