"""The one frozen Settings tree: every limit and switch, each with a unit in its name, a bound and a default that works.

How the values get here is `load`'s business; the docstrings and descriptions become the printed reference.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from app.settings.database import database_url, passwords
from app.settings.origin import origins

ProviderKind = Literal["openai", "anthropic", "scripted", "demo"]
KINDS: tuple[ProviderKind, ...] = ("openai", "anthropic", "scripted", "demo")

MAIN_AGENT = "main"


def _number(value: object) -> object:
    """True is an int to Python, but not to a person who writes a settings file."""
    if isinstance(value, bool):
        raise ValueError("is not a number")
    return value


def _texts(value: object) -> object:
    """A list in the environment is written with commas."""
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


def _loopback(host: str) -> str:
    """Without authentication, whoever reaches the port may do everything."""
    try:
        fine = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        fine = False
    if not fine:
        raise ValueError(
            "is not a loopback address, and this build has no authentication; allowed are 127.0.0.1, ::1, localhost"
        )
    return host


def _web_address(url: str) -> str:
    if url and not re.fullmatch(r"https?://[^\s/]+\S*", url):
        raise ValueError("is not a web address; allowed are http://... and https://...")
    return url.rstrip("/")


_Int = Annotated[int, BeforeValidator(_number)]
_Float = Annotated[float, BeforeValidator(_number)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Server(_Section):
    """The listening socket and the end of the process."""

    host: Annotated[str, AfterValidator(_loopback)] = Field(
        "127.0.0.1", description="Address to listen on. Only loopback addresses: this build has no authentication."
    )
    port: _Int = Field(8420, ge=0, le=65535, description="TCP port to listen on. 0: a free one, printed at start.")
    drain_seconds: _Float = Field(
        30.0, ge=0, le=3600, description="How long a stop waits for the runs that are executing."
    )
    allowed_hosts: Annotated[tuple[str, ...], BeforeValidator(_texts)] = Field(
        (),
        description="Further Host names to answer for; loopback names always are. As a variable: with commas between.",
    )
    allowed_origins: Annotated[tuple[str, ...], BeforeValidator(_texts), AfterValidator(origins)] = Field(
        (),
        description="Origins (`scheme://host`, `scheme://host:port`) whose web pages may do all that a client may. "
        "Empty: only the service's own. As a variable: with commas between.",
    )


class Store(_Section):
    """Where everything durable lives."""

    url: Annotated[str, AfterValidator(database_url)] = Field(
        "sqlite",
        description="The database. `sqlite`: a file in the state directory. `postgresql://user:password@host/name`, "
        "best as `env:NAME` or `file:/path`: a PostgreSQL server, 13 or newer, for one process.",
    )
    synchronous: Literal["full", "normal"] = Field(
        "full",
        description="SQLite's synchronous level. `normal` may lose the last commits at a power cut, not at a crash.",
    )
    pool_size: _Int = Field(
        5,
        ge=1,
        le=64,
        description="Connections that read. With SQLite there is one more, that writes; with PostgreSQL as many again "
        "write, and one renews the lease.",
    )


class Events(_Section):
    """Event streams."""

    heartbeat_seconds: _Float = Field(
        15.0, ge=0.05, le=300, description="Silence after which a stream sends a heartbeat."
    )


class Queue(_Section):
    """What a message does that comes while its session has work."""

    mode: Literal["followup", "reject"] = Field(
        "followup",
        description="`followup`: it waits for its turn. `reject`: it is refused with 409. A request may say otherwise.",
    )
    cap: _Int = Field(20, ge=1, le=10_000, description="Runs that may wait in one session; more are refused with 503.")


class AgentDefaults(_Section):
    """What an agent has that does not say otherwise, and what all agents share."""

    model: str = Field(
        "",
        max_length=256,
        description="`provider:model`, or `demo`. Empty: picked by the provider key in the environment, else `demo`.",
    )
    timeout_seconds: _Float = Field(
        172_800.0, ge=0, le=31_536_000, description="Longest time a run may take, over all its attempts. 0: no limit."
    )
    max_concurrent: _Int = Field(
        0,
        ge=0,
        le=10_000,
        description="Runs that execute at once, over all sessions. 0: four a processor core, at least 8.",
    )
    system_prompt: str = Field("", max_length=100_000, description="Instructions that stand before every conversation.")
    workspace: str = Field(
        "",
        max_length=4_096,
        description="Folder that the file tools work in. Empty: one for each agent, in the state directory.",
    )


class AgentEntry(_Section):
    """One named agent. The agent `main` always exists."""

    description: str = Field("", max_length=1_000, description="For people; shown by `GET /api/v1/agents`.")
    model: str | None = Field(None, max_length=256, description="As `agents.defaults.model`.")
    timeout_seconds: _Float | None = Field(
        None, ge=0, le=31_536_000, description="As `agents.defaults.timeout_seconds`."
    )
    system_prompt: str | None = Field(None, max_length=100_000, description="As `agents.defaults.system_prompt`.")
    workspace: str | None = Field(None, max_length=4_096, description="As `agents.defaults.workspace`.")


class Agents(_Section):
    """`defaults`, and beside it one table for each agent, under its id."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, AgentEntry] = Field(init=False)

    defaults: AgentDefaults = AgentDefaults()


class Provider(_Section):
    """One configured source of models, named by its id in `provider:model`."""

    kind: ProviderKind = Field("demo", description="What it speaks. Default: the id itself, when that is a kind.")
    base_url: Annotated[str, AfterValidator(_web_address)] = Field(
        "",
        description="Its address, such as `http://127.0.0.1:11434/v1`. Empty: the vendor's own.",
    )
    api_key: SecretStr = Field(SecretStr(""), description="The secret, best as `env:NAME` or `file:/path`.")
    timeout_seconds: _Float | None = Field(
        None,
        ge=0.05,
        le=86_400,
        description="Bound of a model call's silence, from connecting on. Default: by the class of the address.",
    )
    script: str = Field(
        "", description="For kind `scripted`: the file with its replies. Relative to the file that names it."
    )


class WriteLock(_Section):
    """The lock on a session's transcript, which every process takes that writes there."""

    acquire_timeout_ms: _Int = Field(
        60_000,
        ge=0,
        le=3_600_000,
        description="How long a writer waits for it before the session counts as busy. 0: not at all. Also by "
        "`LANEWAY_SESSION_WRITE_LOCK_ACQUIRE_TIMEOUT_MS`, where the usual variable is not set.",
    )


class Session(_Section):
    """Sessions."""

    write_lock: WriteLock = WriteLock()


class Recovery(_Section):
    """What happens to runs that were executing when the process died."""

    resume: bool = Field(True, description="Go on from the last settled step. `false`: they end as `interrupted`.")


class Exec(_Section):
    """The tool `exec`, which runs commands."""

    security: Literal["deny", "allowlist", "full"] = Field(
        "allowlist",
        description="`deny`: no command runs. `allowlist`: only listed ones, on paths of the workspace. `full`: all.",
    )
    allowlist: Annotated[tuple[str, ...], BeforeValidator(_texts)] = Field(
        ("ls", "cat", "head", "tail", "wc"),
        description="Names of commands, found by PATH, or patterns of absolute paths; `*`: any. One that starts other "
        "programs (`find`, `env`) lets everything through. As a variable: with commas.",
    )
    timeout_seconds: _Float = Field(1_800.0, ge=0.1, le=86_400, description="Longest time that a command may take.")


class WebFetch(_Section):
    """The tool `web_fetch`, which reads web pages."""

    allow_hosts: Annotated[tuple[str, ...], BeforeValidator(_texts)] = Field(
        (),
        description="Hosts (`name` or `name:port`) that may be read although their address is private.",
    )


class Tools(_Section):
    """Tools that models may call."""

    allow: Annotated[tuple[str, ...], BeforeValidator(_texts)] = Field(
        ("*",), description="Names of tools that are offered, `*` and `?` stand for letters."
    )
    deny: Annotated[tuple[str, ...], BeforeValidator(_texts)] = Field(
        (), description="Names of tools that are not offered, whatever `allow` says."
    )
    abort_drain_ms: _Int = Field(
        5_000, ge=0, le=600_000, description="How long an aborted run waits for its tools to stop."
    )
    exec: Exec = Exec()
    web_fetch: WebFetch = WebFetch()


class Retention(_Section):
    """How long things are kept."""

    runs_days: _Int = Field(
        0,
        ge=0,
        le=36_500,
        description="Days that a run is kept after its end, with its events and its idempotency key. 0: as long as its "
        "session. Its transcript stays, and the ledger has bounds of its own.",
    )
    events_per_run: _Int = Field(
        0,
        ge=0,
        le=100_000_000,
        description="Events kept of an ended run, the newest, once it is folded. 0: all. Its transcript stays.",
    )


class Limits(_Section):
    """Bounds that keep one client, run or day from filling memory or disk."""

    request_body_bytes: _Int = Field(20 * 1024 * 1024, ge=1024, le=1024**3, description="Largest request body.")
    event_bytes: _Int = Field(
        65_536,
        ge=1024,
        le=16 * 1024 * 1024,
        description="Largest data of one event; longer content is cut there and marked.",
    )
    streams_per_principal: _Int = Field(
        200, ge=1, le=100_000, description="Event streams that one caller may hold open."
    )
    audit_rows: _Int = Field(100_000, ge=100, le=100_000_000, description="Rows that the audit ledger keeps.")
    audit_days: _Int = Field(30, ge=1, le=3_650, description="Days that the audit ledger keeps.")
    accept_wait_ms: _Int = Field(
        5_000, ge=1, le=60_000, description="How long accepting a run waits for the store before it answers 503."
    )
    tool_rounds: _Int = Field(200, ge=1, le=10_000, description="Answers with tool calls that a run may get.")
    tool_repeats: _Int = Field(
        10,
        ge=2,
        le=1_000,
        description="How often a run may make the same call with the same result, or only calls of unknown tools.",
    )
    cut_answers: _Int = Field(
        3, ge=1, le=100, description="Answers in a row that the output limit may cut in the middle of a tool call."
    )
    parallel_tools: _Int = Field(8, ge=1, le=256, description="Tools that one run may have at work. 1: one by one.")
    tool_arguments_bytes: _Int = Field(
        4 * 1024 * 1024 + 65_536, ge=1024, le=64 * 1024 * 1024, description="Largest arguments of a tool call."
    )
    tool_output_bytes: _Int = Field(
        262_144, ge=1024, le=16 * 1024 * 1024, description="Largest result of a tool that is kept; more is left out."
    )
    tool_model_chars: _Int = Field(
        32_000, ge=2_000, le=4_000_000, description="How much of a tool's result the model gets."
    )
    tool_event_chars: _Int = Field(
        8_000, ge=100, le=1_000_000, description="How much of a tool's result events show, in characters."
    )
    store_queue_steps: _Int = Field(4_096, ge=16, le=1_000_000, description="Writes that may wait for the store.")


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent with its defaults filled in. `timeout_seconds` 0 means no limit."""

    id: str
    description: str
    model: str
    timeout_seconds: float
    system_prompt: str
    workspace: Path


class Settings(_Section):
    """Everything that can be set."""

    state_dir: Path = Field(
        description="Folder of everything the service keeps. By `--state-dir` or `LANEWAY_STATE_DIR` only."
    )
    server: Server = Server()
    store: Store = Store()
    events: Events = Events()
    queue: Queue = Queue()
    agents: Agents = Agents()
    providers: dict[str, Provider] = Field(default_factory=dict)
    session: Session = Session()
    recovery: Recovery = Recovery()
    tools: Tools = Tools()
    retention: Retention = Retention()
    limits: Limits = Limits()

    def agent(self, agent_id: str) -> Agent | None:
        """The agent of that id, or None when it is not configured."""
        entry = self.agents.__pydantic_extra__.get(agent_id)
        if entry is None and agent_id != MAIN_AGENT:
            return None
        entry, shared = entry or AgentEntry(), self.agents.defaults
        return Agent(
            id=agent_id,
            description=entry.description,
            model=entry.model or shared.model,
            timeout_seconds=shared.timeout_seconds if entry.timeout_seconds is None else entry.timeout_seconds,
            system_prompt=shared.system_prompt if entry.system_prompt is None else entry.system_prompt,
            workspace=self._workspace(agent_id, shared.workspace if entry.workspace is None else entry.workspace),
        )

    def _workspace(self, agent_id: str, configured: str) -> Path:
        return Path(configured) if configured else self.state_dir / "agents" / agent_id / "workspace"

    def agent_ids(self) -> tuple[str, ...]:
        """`main` first, then the others by name."""
        return (MAIN_AGENT, *sorted(self.agents.__pydantic_extra__.keys() - {MAIN_AGENT}))

    def provider(self, provider_id: str) -> Provider | None:
        """The provider of that id: as configured, or a kind with nothing configured under its own name."""
        if provider_id in KINDS:
            return self.providers.get(provider_id, Provider(kind=provider_id))
        return self.providers.get(provider_id)

    def secrets(self) -> tuple[str, ...]:
        """Every secret value that stands in here, to be kept out of whatever is shown."""
        keys = (provider.api_key.get_secret_value() for provider in self.providers.values())
        return (*(key for key in keys if key), *passwords(self.store.url))

    def max_concurrent_runs(self) -> int:
        """`agents.defaults.max_concurrent` with 0 worked out."""
        return self.agents.defaults.max_concurrent or max(8, 4 * (os.cpu_count() or 1))
