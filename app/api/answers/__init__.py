"""What the service answers with, as models for the OpenAPI document alone: no answer is made or checked by them.

Loaded when the document is first asked for. A field of type `X | None` is always there and may be null; one with the
default None is left out when it does not apply.
"""
