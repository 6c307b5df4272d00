"""Laneway: a self-hosted agent run service."""

__version__ = "0.1.0"
