"""Models behind the chat-completions API: the vendor's own and every compatible server's.

Messages are shaped by us and handed to the SDK as extra body: its own conversion takes 0.12 ms for each stored message,
on the event loop, with every request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import httpx2
import openai
from openai.types.chat import ChatCompletionChunk
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
from pydantic_ai.usage import RequestUsage

from app.clock import Ids
from app.domain.message import Usage
from app.providers import history
from app.providers.client import timeout
from app.providers.contract import ModelRequest
from app.providers.endpoint import Endpoint
from app.providers.openai_wire import FACTS_FIELD, TAGGED_THINKING_FIELD, ChatWire
from app.providers.stream import Layered, Shaped, settings
from app.providers.transport import Dialect

_NO_KEY: Final = "none"
_NO_USAGE: Final = RequestUsage()
_PLAIN: Final = ModelRequestParameters()


def dialect(endpoint: Endpoint, ids: Ids) -> Callable[[], Dialect]:
    """Makes the normalizer of one stream."""
    return lambda: ChatWire(endpoint.provider, ids)


def layered(endpoint: Endpoint, model_name: str, http: httpx2.AsyncClient) -> Layered:
    """One model of the endpoint, called through `http`."""
    sdk = openai.AsyncOpenAI(
        api_key=endpoint.api_key or _NO_KEY,
        base_url=endpoint.base_url,
        timeout=timeout(endpoint),
        max_retries=0,
        http_client=http,
        # Our wire only lets through what is valid, and checking is faster than the SDK's building without checks.
        _strict_response_validation=True,
    )
    if not endpoint.is_vendor:
        sdk.organization = sdk.project = None  # taken from the environment, meant for the vendor
    source = (
        OpenAIProvider(openai_client=sdk)
        if endpoint.is_vendor
        else OpenAICompatibleProvider(endpoint.provider, openai_client=sdk)
    )
    profile = OpenAIModelProfile(
        # The wire has dealt with tags; text is told and sent as it is.
        thinking_tags=("", ""),
        ignore_streamed_leading_whitespace=False,
        may_tokenize_special_tokens_in_content=False,
        openai_chat_thinking_field=TAGGED_THINKING_FIELD,
    )
    if not endpoint.is_vendor:
        profile["openai_chat_supports_max_completion_tokens"] = False
    model = _ChatModel(model_name, provider=source, profile=profile)
    system_role = model.profile.get("openai_system_prompt_role") or "system"

    def shape(request: ModelRequest) -> Shaped:
        body: dict[str, Any] = {"messages": history.chat_messages(request, endpoint.provider, system_role)}
        if request.tools:
            body["tools"] = history.chat_tools(request.tools)
        return [], settings(request, extra_body=body), _PLAIN

    def thinking_detail(part: ThinkingPart) -> dict[str, Any] | None:
        if not part.id or part.id == TAGGED_THINKING_FIELD:
            return None
        return {history.PROVIDER_KEY: endpoint.provider, history.FIELD_KEY: part.id}

    return Layered(endpoint.provider, model, shape, thinking_detail, _chat_usage)


class _ChatStream(OpenAIStreamedResponse):
    """Takes usage and finish reason from the facts that our wire adds to the last chunk."""

    def _map_chunk_provider_details(self, chunk: ChatCompletionChunk) -> dict[str, Any] | None:
        return cast("dict[str, Any] | None", (chunk.model_extra or {}).get(FACTS_FIELD))

    def _map_usage(self, response: ChatCompletionChunk) -> RequestUsage:
        return _NO_USAGE


class _ChatModel(OpenAIChatModel):
    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _ChatStream


def _chat_usage(response: StreamedResponse) -> Usage:
    """Counts as the server gave them; what it did not give stays unknown."""
    raw = (response.provider_details or {}).get("usage")
    raw = raw if isinstance(raw, dict) else {}
    details = raw.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    return Usage(
        input_tokens=_count(raw.get("prompt_tokens")),
        output_tokens=_count(raw.get("completion_tokens")),
        cache_read_tokens=_count(details.get("cached_tokens", raw.get("prompt_cache_hit_tokens"))),
        cache_write_tokens=_count(details.get("cache_write_tokens")),
        model_calls=1,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
