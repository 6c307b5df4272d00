"""The one document of every failure."""

from __future__ import annotations

from pydantic import Field

from app.api.words import Count, Id, ProblemCode, Schema


class Place(Schema):
    """A wrong place in the request: what is wrong, and one of the other three, where."""

    detail: str = Field(description="What is wrong, or what is allowed.")
    pointer: str | None = Field(
        None, description="JSON pointer into the body, as a fragment.", examples=["#/queue/mode"]
    )
    parameter: str | None = Field(None, description="Name of a path or query parameter.")
    header: str | None = Field(None, description="Name of a header.")


class Problem(Schema):
    """A failure (RFC 9457)."""

    type: str = Field(description="`urn:laneway:problem:` and the code.")
    title: str = Field(description="The code in words.")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What is wrong and what to do, for people.")
    instance: str = Field(description="`urn:laneway:request:` and the `X-Request-Id`.")
    code: ProblemCode
    retryable: bool = Field(description="Whether the same request may work later.")
    retry_after_ms: Count | None = Field(None, description="The least time to wait before; `Retry-After` in seconds.")
    run_id: Id | None = Field(
        None, description="With `store-busy`: whether this run was accepted is not known. Post again with the same key."
    )
    errors: list[Place] | None = Field(None, description="The wrong places, if any.")
