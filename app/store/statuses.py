"""Conditions on a run's status, as literals: a partial index serves only what the planner can see."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Column, ColumnElement, literal_column

from app.domain.run import OPEN_STATUSES, RunStatus


def _one_of(column: Column[str], statuses: Iterable[str]) -> ColumnElement[bool]:
    return column.in_([literal_column(f"'{status}'") for status in statuses])


def is_open(column: Column[str]) -> ColumnElement[bool]:
    """Not terminal."""
    return _one_of(column, OPEN_STATUSES)


def is_executing(column: Column[str]) -> ColumnElement[bool]:
    """Running, or waiting to go on after an interruption."""
    return _one_of(column, (RunStatus.RUNNING, RunStatus.RECOVERING))


def is_waiting(column: Column[str]) -> ColumnElement[bool]:
    """Somebody has to take it."""
    return _one_of(column, (RunStatus.QUEUED, RunStatus.RECOVERING))


def is_running(column: Column[str]) -> ColumnElement[bool]:
    """An attempt is in somebody's hands."""
    return column == literal_column("'running'")


def is_queued(column: Column[str]) -> ColumnElement[bool]:
    """Never taken yet."""
    return column == literal_column("'queued'")
