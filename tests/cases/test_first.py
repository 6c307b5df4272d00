"""A first test: one message, one reply, and the rules that hold after every case."""

from __future__ import annotations

from tests.kit.model_server import ModelServer, reply_text
from tests.kit.rules import check_case, reply_texts
from tests.kit.service import ServiceFactory


async def test_a_message_is_answered(service: ServiceFactory, model: ModelServer) -> None:
    model.on("how are you", reply_text("fine, and you?"))
    async with service() as one:
        run_id = await one.run("how are you [s:mine]", "mine")
        assert reply_texts(await one.ended(run_id)) == ["fine, and you?"]
        await check_case(one, [run_id], sessions=["mine"])
