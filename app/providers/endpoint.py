"""Where one configured provider is, what it speaks and how long it may be silent. Nothing is opened here."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from app.settings import Provider, ProviderKind

VENDOR_URLS: Final[dict[ProviderKind, str]] = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
}
"""The address of each kind that has a vendor of its own."""

KEY_VARIABLES: Final[dict[ProviderKind, str]] = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}

VENDOR_IDLE_S: Final = 120.0
OTHER_IDLE_S: Final = 300.0
"""Longest silence of a vendor's service and of anything else; a machine of one's own may load a model first."""

_VENDOR_DOMAINS: Final = (
    "openai.com", "anthropic.com", "googleapis.com", "mistral.ai", "groq.com", "deepseek.com", "openrouter.ai", "x.ai",
    "cohere.com", "together.xyz", "fireworks.ai", "cerebras.ai", "perplexity.ai", "moonshot.ai", "z.ai", "azure.com",
    "amazonaws.com", "nebius.com", "sambanova.ai", "deepinfra.com",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One provider. `base_url` is never empty for a kind that is called over the network."""

    provider: str
    kind: ProviderKind
    base_url: str
    api_key: str = field(repr=False)
    idle_s: float
    """Longest time without content, and with it the bound of connecting, headers and reading."""
    is_vendor: bool
    """The address is the vendor's own, where nothing works without a key."""

    @staticmethod
    def of(provider_id: str, provider: Provider) -> Endpoint:
        """The endpoint that a provider's settings describe."""
        own_url = VENDOR_URLS.get(provider.kind, "")
        base_url = provider.base_url or own_url
        timeout_s = provider.timeout_seconds
        return Endpoint(
            provider=provider_id,
            kind=provider.kind,
            base_url=base_url,
            api_key=provider.api_key.get_secret_value(),
            idle_s=timeout_s if timeout_s is not None else _idle_s(base_url),
            is_vendor=bool(own_url) and host_of(base_url) == host_of(own_url),
        )

    @property
    def missing_key(self) -> str | None:
        """What to set when a key is needed and not there."""
        if self.api_key or not self.is_vendor:
            return None
        return (
            f"provider {self.provider!r} has no API key; set {KEY_VARIABLES[self.kind]} in the environment "
            f"or providers.{self.provider}.api_key"
        )


def host_of(url: str) -> str:
    """The host of a web address in lower case, empty when there is none."""
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def is_local(host: str) -> bool:
    """True for loopback names and for loopback, private and link-local addresses."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_private or address.is_link_local


def _idle_s(base_url: str) -> float:
    host = host_of(base_url)
    is_vendor = any(host == domain or host.endswith(f".{domain}") for domain in _VENDOR_DOMAINS)
    return VENDOR_IDLE_S if is_vendor else OTHER_IDLE_S
