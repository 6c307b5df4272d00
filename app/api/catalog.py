"""What is configured: agents and models. Secrets never."""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Depends
from fastapi.responses import Response

from app.api.context import ServiceDep
from app.api.requests import JSON, known_parameters
from app.settings import MAIN_AGENT

router = APIRouter(prefix="/api/v1", tags=["catalog"], dependencies=[Depends(known_parameters)])


@router.get("/agents", operation_id="listAgents", summary="List agents")
async def list_agents(service: ServiceDep) -> Response:
    """The configured agents."""
    settings = service.around.settings
    agents = [agent for agent_id in settings.agent_ids() if (agent := settings.agent(agent_id)) is not None]
    items = [
        {
            "agent": agent.id,
            "description": agent.description,
            "model": agent.model,
            "timeoutSeconds": agent.timeout_seconds,
            "default": agent.id == MAIN_AGENT,
        }
        for agent in agents
    ]
    return _items(items)


@router.get("/models", operation_id="listModels", summary="List models")
async def list_models(service: ServiceDep) -> Response:
    """The models that agents use. `demo: true` marks the built-in, scripted, offline one."""
    settings = service.around.settings
    default = settings.agent(MAIN_AGENT)
    assert default is not None
    names = {agent.model for agent_id in settings.agent_ids() if (agent := settings.agent(agent_id)) is not None}
    items: list[dict[str, object]] = []
    for name in sorted(names):
        provider = settings.provider(name.split(":", 1)[0])
        kind = provider.kind if provider is not None else None
        items.append(
            {
                "model": name,
                "kind": kind,
                "demo": kind == "demo",
                "default": name == default.model,
                "problem": service.around.providers.known(name),
            }
        )
    return _items(items)


def _items(items: list[dict[str, object]]) -> Response:
    return Response(orjson.dumps({"items": items, "nextCursor": None}), 200, None, JSON)
