"""Models behind the messages API of Anthropic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anthropic
import httpx2
from pydantic_ai.messages import InstructionPart, ThinkingPart
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.tools import ToolDefinition

from app.clock import Ids
from app.domain.message import Usage
from app.providers import history
from app.providers.anthropic_wire import MessagesWire
from app.providers.client import timeout
from app.providers.contract import ModelRequest
from app.providers.endpoint import Endpoint
from app.providers.stream import Layered, Shaped, settings
from app.providers.transport import Dialect

_NO_KEY: Final = "none"


def dialect(endpoint: Endpoint, ids: Ids) -> Callable[[], Dialect]:
    """Makes the normalizer of one stream. This API names every call itself."""
    del ids
    return lambda: MessagesWire(endpoint.provider)


def layered(endpoint: Endpoint, model_name: str, http: httpx2.AsyncClient) -> Layered:
    """One model of the endpoint, called through `http`."""
    sdk = anthropic.AsyncAnthropic(
        api_key=endpoint.api_key or _NO_KEY,
        base_url=endpoint.base_url,
        timeout=timeout(endpoint),
        max_retries=0,
        http_client=http,
    )
    model = AnthropicModel(model_name, provider=AnthropicProvider(anthropic_client=sdk))

    def shape(request: ModelRequest) -> Shaped:
        parameters = ModelRequestParameters(
            function_tools=[
                ToolDefinition(name=tool.name, parameters_json_schema=tool.parameters, description=tool.description)
                for tool in request.tools
            ],
            instruction_parts=[InstructionPart(content=request.system)] if request.system else None,
        )
        messages = history.layer_messages(request, endpoint.provider, layer_name=model.system)
        return messages, settings(request), parameters

    def thinking_detail(part: ThinkingPart) -> dict[str, Any] | None:
        if not part.signature:
            return None
        detail = {
            history.PROVIDER_KEY: endpoint.provider,
            history.SIGNATURE_KEY: part.signature,
            history.ID_KEY: part.id,
        }
        return {key: value for key, value in detail.items() if value}

    return Layered(endpoint.provider, model, shape, thinking_detail, _layer_usage)


def _layer_usage(response: StreamedResponse) -> Usage:
    """Counts from the model layer, which has zeros where nothing was told."""
    counted = response.usage
    if not (counted.input_tokens or counted.output_tokens):
        return Usage(model_calls=1)
    return Usage(
        input_tokens=counted.input_tokens,
        output_tokens=counted.output_tokens,
        cache_read_tokens=counted.cache_read_tokens,
        cache_write_tokens=counted.cache_write_tokens,
        model_calls=1,
    )
