"""How fast the service is, measured beside a bare service and beside no service at all: `python -m benchmarks`."""
