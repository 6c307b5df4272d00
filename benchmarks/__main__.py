"""`python -m benchmarks`: measure everything in one run, print the table, and write the figures as JSON.

A figure that misses its goal is told, never a failure. The exit code is 1 when something could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import uvloop

from benchmarks import answering, footprint, throughput
from benchmarks.figures import Figure, table
from benchmarks.machine import BUSY_SHARE, Bystanders, described
from benchmarks.plan import Plan
from benchmarks.process import NotStarted
from benchmarks.stage import Stage, stage
from benchmarks.stored import stored
from benchmarks.wire import Broken, now
from tests.kit.database import KINDS, StoreKind

Measure = Callable[[Stage, Plan], Awaitable[list[Figure]]]

MEASURES: dict[str, Measure] = {
    "accept": answering.accept,
    "first-token": answering.first_token,
    "runs": throughput.runs,
    "long-answer": answering.long_answer,
    "deltas": throughput.deltas,
    "tools": answering.tools,
    "streams": footprint.streams,
    "memory": footprint.memory,
    "start": footprint.start,
    "stored": stored,
}
MEASURE_S_MAX = 300.0
OPEN_FILES = 8192


def main() -> int:
    options = _options()
    _allow_open_files()
    plan = Plan(options.scale, options.repeats)
    try:
        figures = {store: uvloop.run(_measure(options.only, plan, store)) for store in options.store}
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped before the end", file=sys.stderr)
        return 130
    for store, found in figures.items():
        print(f"\nKept in {store}:\n\n{table(found)}")
    for error in plan.errors:
        print(f"! {error}")
    noisy = [name for name, others in plan.others.items() if others > BUSY_SHARE]
    if noisy:
        print(f"~ others kept the machine busy meanwhile, so these read worse than they are: {', '.join(noisy)}")
    if options.out is not None:
        options.out.write_bytes(orjson.dumps(_report(options, plan, figures), option=orjson.OPT_INDENT_2))
    return 1 if plan.errors else 0


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    options.add_argument("--scale", type=float, default=1.0, help="multiplies every count of calls (default 1)")
    options.add_argument("--repeats", type=int, default=3, help="how often each measurement is taken (default 3)")
    options.add_argument("--only", default="", help=f"some of {','.join(MEASURES)}, with commas between")
    options.add_argument(
        "--store",
        choices=[*KINDS, "both"],
        default="sqlite",
        help="where the service keeps everything (default sqlite)",
    )
    options.add_argument("--out", type=Path, help="write the figures, with every sample, as JSON to this file")
    given = options.parse_args()
    given.store = KINDS if given.store == "both" else (given.store,)
    given.only = [name for name in given.only.split(",") if name] or list(MEASURES)
    unknown = set(given.only).difference(MEASURES)
    if unknown:
        options.error(f"--only: {', '.join(sorted(unknown))}: there are {', '.join(MEASURES)}")
    if given.scale <= 0 or given.repeats < 1:
        options.error("--scale must be above 0 and --repeats at least 1")
    return given


async def _measure(names: list[str], plan: Plan, store: StoreKind) -> list[Figure]:
    """The figures of the named measurements; one that breaks is noted and the others go on."""
    me = asyncio.current_task()
    assert me is not None
    for number in (signal.SIGTERM, signal.SIGINT):  # what was started is stopped before we go
        asyncio.get_running_loop().add_signal_handler(number, me.cancel)
    figures: list[Figure] = []
    async with stage(store) as set_up:
        for name in names:
            begun, bystanders = now(), Bystanders(set_up.model)
            try:
                async with asyncio.timeout(MEASURE_S_MAX):
                    figures += await MEASURES[name](set_up, plan)
            except (OSError, Broken, NotStarted, TimeoutError) as problem:
                plan.errors.append(f"{name} on {store} could not be measured: {problem or repr(problem)}")
            others = bystanders.share()
            plan.others[f"{name} on {store}"] = round(others, 3)
            print(
                f"{name} on {store}: {now() - begun:.0f} s, others took {others:.0%} of the CPUs",
                file=sys.stderr,
                flush=True,
            )
    return figures


def _allow_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _report(options: argparse.Namespace, plan: Plan, figures: dict[StoreKind, list[Figure]]) -> dict[str, Any]:
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": described(),
        "cpuShareOfOthers": plan.others,
        "options": {"scale": options.scale, "repeats": options.repeats, "only": options.only},
        "figures": {store: [figure.to_json() for figure in found] for store, found in figures.items()},
        "errors": plan.errors,
    }


if __name__ == "__main__":
    sys.exit(main())
