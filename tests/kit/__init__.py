"""The test kit: a scripted model, a strict SSE client, the service as a real process, and the checks of its promises.

`model_server` is what the service calls, `service` what the tests call, `sse` what they read, `invariants`
and `rules` what must hold after every case.
"""
