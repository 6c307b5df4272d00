"""The document against a running service: whatever it allows, and much that it does not, is answered as it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.gauges import until_quiet
from tests.kit.rules import check_case
from tests.kit.service import ServiceFactory

EXAMPLES = 60
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"),
    *("response_headers_conformance", "negative_data_rejection", "unsupported_method", "allow_header_conformance"),
)
"""Not `positive_data_acceptance`: a schema cannot tell a cursor from another text, nor a new key from a used one.
The others have nothing to find here: no header is required, nothing is deleted, and there are no accounts.
"""
SEED = 20_261_130
FUZZ_S = 240


@pytest.mark.drill
@pytest.mark.timeout(FUZZ_S + 60)
async def test_whatever_is_sent_the_answer_is_one_of_the_document(service: ServiceFactory, tmp_path: Path) -> None:
    """No 500, nothing that the document does not have, nothing accepted that it rules out; and the service goes on."""
    async with service({"queue.cap": 10_000}) as one:
        first = await one.run("x", "fuzzed")
        await one.ended(first)
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{one.address}/openapi.json"),
            *("--checks", ",".join(CHECKS), "--max-examples", str(EXAMPLES), "--seed", str(SEED), "--no-color"),
            *("--request-timeout", "60", "--phases", "examples,coverage,fuzzing,stateful", "--continue-on-failure"),
        ]
        done = subprocess.run(  # noqa: ASYNC221 - nothing else happens in this loop
            command, cwd=tmp_path, capture_output=True, text=True, timeout=FUZZ_S, check=False
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert "Traceback" not in one.log, one.log[-3000:]
        await one.abort_session("fuzzed")
        await until_quiet(one, timeout_s=60)
        await check_case(one, [first], sessions=["fuzzed"])
