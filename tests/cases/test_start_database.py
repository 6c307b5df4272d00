"""Databases that cannot be served: corrupt, locked, newer, or broken while running; each said in one line, none spoilt."""

from __future__ import annotations

import contextlib
import importlib.util
import sqlite3
from pathlib import Path
from types import ModuleType

import pytest

from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory
from tests.kit.starting import check_refused, start
