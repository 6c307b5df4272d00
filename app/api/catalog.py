"""What is configured: agents, models and tools. Secrets never."""

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
    """The models of the agents, and the built-in one. `demo: true` marks what is scripted and offline."""
    default = service.around.settings.agent(MAIN_AGENT)
    assert default is not None
    providers = service.around.providers
    items: list[dict[str, object]] = [
        {
            "model": row.name,
            "kind": row.kind,
            "demo": row.kind == "demo",
            "default": row.name == default.model,
            "problem": providers.known(row.name),
        }
        for row in providers.models()
    ]
    return _items(items)


@router.get("/tools", operation_id="listTools", summary="List tools")
async def list_tools(service: ServiceDep) -> Response:
    """The tools of the service. `offered: false` marks those that `tools.allow` and `tools.deny` keep from models."""
    registry = service.around.tools
    items: list[dict[str, object]] = [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "sequential": tool.sequential,
            "offered": tool.name in registry.offered,
        }
        for tool in registry.all.values()
    ]
    return _items(items)


def _items(items: list[dict[str, object]]) -> Response:
    return Response(orjson.dumps({"items": items, "nextCursor": None}), 200, None, JSON)
