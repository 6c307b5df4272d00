"""From a model's name to its provider. The only place that loads the model layer, in a thread and when first needed.

Names are `provider:model`; `demo` and `scripted` may stand alone. Whether a name can work is told from the settings
alone, without loading anything and without a request.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from app.clock import Clock, Ids, SystemClock, UuidIds
from app.providers.contract import ModelProvider, ProviderError, ProviderErrorCode
from app.providers.demo import DemoProvider
from app.providers.endpoint import Endpoint
from app.providers.script import Script
from app.providers.scripted import ScriptedProvider
from app.settings import ProviderKind, Settings

if TYPE_CHECKING:
    import ssl

    import httpx2

DEMO: Final = "demo"
_OFFLINE: Final = frozenset[ProviderKind]({"demo", "scripted"})


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model that is configured for some agent, or the built-in one. `is_offline`: it asks no model at all."""

    name: str
    provider: str
    kind: ProviderKind
    is_offline: bool


class Providers:
    """All providers of the settings. Raises SettingsError for a script that cannot be played."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._ids = ids or UuidIds()
        self._made: dict[str, ModelProvider] = {}
        self._clients: dict[str, httpx2.AsyncClient] = {}
        self._tls: ssl.SSLContext | None = None
        self._vendors: dict[ProviderKind, ModuleType] = {}
        self._making = asyncio.Lock()
        self._loading = asyncio.Lock()
        self._scripts = {
            provider_id: Script.load(Path(provider.script))
            for provider_id, provider in settings.providers.items()
            if provider.kind == "scripted" and provider.script
        }

    async def resolve(self, model: str) -> ModelProvider:
        """The provider for the model, one for each name. Raises ProviderError when the settings cannot serve it."""
        made = self._made.get(model)
        if made is not None:
            return made
        problem = self._problem(model)
        if problem is not None:
            code, text = problem
            raise ProviderError(code, text)
        async with self._making:
            made = self._made.get(model)
            if made is None:
                made = self._made[model] = await self._make(model)
        return made

    def known(self, model: str) -> str | None:
        """None when the settings can serve the model, else what is wrong and what to configure."""
        problem = self._problem(model)
        return None if problem is None else problem[1]

    def models(self) -> tuple[ModelRow, ...]:
        """The models of the agents, in the agents' order, and the built-in one, each once."""
        agents = (self._settings.agent(agent_id) for agent_id in self._settings.agent_ids())
        names = dict.fromkeys([*(agent.model or DEMO for agent in agents if agent is not None), DEMO])
        rows: list[ModelRow] = []
        for name in names:
            provider_id = name.partition(":")[0]
            provider = self._settings.provider(provider_id)
            if provider is not None:
                rows.append(ModelRow(name, provider_id, provider.kind, provider.kind in _OFFLINE))
        return tuple(rows)

    def idle_timeout_s(self, model: str) -> float:
        """How long the model may send nothing of content before a call of it counts as failed."""
        endpoint = self._endpoint(model)
        assert endpoint is not None, f"no provider for {model!r}"
        return endpoint.idle_s

    async def warm(self) -> None:
        """Load what the agents' models need, in a thread: it takes a second or two. To be called when the port is open.

        A call that comes before waits for it. With nothing but offline models there is nothing to load.
        """
        for kind in {row.kind for row in self.models() if not row.is_offline}:
            async with self._loading:
                await self._vendor(kind)

    async def close(self) -> None:
        """Close every provider and every connection."""
        for provider in self._made.values():
            await provider.close()
        for client in self._clients.values():
            await client.aclose()
        self._made.clear()
        self._clients.clear()

    def _endpoint(self, model: str) -> Endpoint | None:
        provider_id = model.partition(":")[0]
        provider = self._settings.provider(provider_id)
        return None if provider is None else Endpoint.of(provider_id, provider)

    def _problem(self, model: str) -> tuple[ProviderErrorCode, str] | None:
        provider_id, _, name = model.partition(":")
        endpoint = self._endpoint(model)
        if endpoint is None:
            ids = ", ".join(sorted({*self._settings.providers, "openai", "anthropic", "scripted", DEMO}))
            return "model-not-found", f"no provider {provider_id!r} for model {model!r}; there are {ids}"
        if endpoint.kind in _OFFLINE:
            return None
        if not name:
            return "model-not-found", f"{model!r} names no model; write {provider_id}:MODEL"
        missing = endpoint.missing_key
        return None if missing is None else ("provider-auth", missing)

    async def _make(self, model: str) -> ModelProvider:
        endpoint = self._endpoint(model)
        assert endpoint is not None
        if endpoint.kind == "demo":
            return DemoProvider(model, ids=self._ids)
        if endpoint.kind == "scripted":
            return ScriptedProvider(model, self._scripts.get(endpoint.provider), ids=self._ids)
        async with self._loading:
            await self._vendor(endpoint.kind)
        return await asyncio.to_thread(self._connect, model, endpoint)

    async def _vendor(self, kind: ProviderKind) -> None:
        """Load one vendor's module, once."""
        if kind not in self._vendors:
            self._vendors[kind], self._tls = await asyncio.to_thread(_load, kind, self._tls)

    def _connect(self, model: str, endpoint: Endpoint) -> ModelProvider:
        """A provider over the network; runs in a thread, because an SDK's client takes a while to build."""
        from app.providers.client import client
        from app.providers.stream import LayeredProvider

        vendor = self._vendors[endpoint.kind]
        http = self._clients.get(endpoint.provider)
        if http is None:
            assert self._tls is not None
            http = client(endpoint, vendor.dialect(endpoint, self._ids), self._tls, self._clock)
            self._clients[endpoint.provider] = http
        return LayeredProvider(model, vendor.layered(endpoint, model.partition(":")[2], http), self._clock)


def _load(kind: ProviderKind, tls: ssl.SSLContext | None) -> tuple[ModuleType, ssl.SSLContext]:
    """Import a vendor's module and call it once without a network; trusted certificates take a while to load, too."""
    import httpx2

    from app.providers.rehearsal import rehearse

    vendor = import_module(f"app.providers.{kind}_vendor")
    rehearse(kind, vendor)
    return vendor, tls or httpx2.create_ssl_context()
