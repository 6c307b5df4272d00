"""Probes and metrics: alive, ready, and the gauges of what could run full."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from sqlalchemy import Connection, literal, select

from app.api.context import ServiceDep
from app.api.requests import JSON
from app.errors import StoreBusy
from app.runs.service import Service

READY_WITHIN_S = 5.0

router = APIRouter(tags=["operation"])


@router.get("/healthz", operation_id="readHealth", summary="Whether the process is alive")
async def health() -> Response:
    """Answers as long as the event loop runs."""
    return Response(orjson.dumps({"status": "ok"}), 200, None, JSON)


@router.get("/readyz", operation_id="readReadiness", summary="Whether new runs are taken")
async def ready(service: ServiceDep) -> Response:
    """200 when the store answers and new runs are taken, else 503 with the reason."""
    reason = None
    if service.draining:
        reason = "draining"
    else:
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                await service.around.store.read(_one)
        except (TimeoutError, StoreBusy):
            reason = "store-busy"
    body = {"status": "ready"} if reason is None else {"status": "not-ready", "reason": reason}
    return Response(orjson.dumps(body), 200 if reason is None else 503, None, JSON)


def _one(conn: Connection) -> None:
    conn.execute(select(literal(1)))


@router.get("/metrics", operation_id="readMetrics", summary="Metrics in Prometheus text")
async def metrics(request: Request, service: ServiceDep) -> Response:
    """Gauges of what is open, in hand and waiting."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Gauges(service))
    return Response(generate_latest(registry), 200, None, CONTENT_TYPE_LATEST)


class _Gauges:
    """Reads the service when it is scraped."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[GaugeMetricFamily]:
        service = self._service
        store = service.around.store.stats()
        for name, text, value in (
            ("laneway_open_streams", "Event streams open.", service.streams.open),
            ("laneway_runs_executing", "Attempts in hand.", service.executor.executing),
            ("laneway_turns_left_behind", "Turns and tools that did not stop in time.", service.executor.stragglers),
            ("laneway_store_queued_steps", "Writes that wait for the store.", store.queued_steps),
            ("laneway_store_active_reads", "Reads in hand or waiting.", store.active_reads),
            ("laneway_store_pool_size", "Connections that read.", store.pool_size),
            ("laneway_store_wal_bytes", "Size of SQLite's write-ahead log.", store.wal_bytes),
            ("laneway_draining", "1 while the service is shutting down.", int(service.draining)),
        ):
            if value is not None:
                yield GaugeMetricFamily(name, text, value=value)
