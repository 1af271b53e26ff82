"""A taskset of verifiers: say a text of an even number of characters, twice. Its harness runs in the process."""

from collections.abc import Iterator
from typing import Any

import httpx
import verifiers.v1 as vf

__all__ = ["EvenWords", "TwoTurns"]


class EvenTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):  # type: ignore[misc]  # verifiers has types only where it is installed
    """Pays for the share of even replies."""

    @vf.reward  # type: ignore[untyped-decorator]  # as above
    async def even(self, trace: Any) -> float:
        replies = [message.content or "" for message in trace.assistant_messages]
        return sum(len(reply) % 2 == 0 for reply in replies) / len(replies)


class EvenWords(vf.Taskset[EvenTask, vf.TasksetConfig]):  # type: ignore[misc]  # as above
    """Twelve tasks; the service of every third one is down."""

    def load(self) -> Iterator[EvenTask]:
        for number in range(12):
            yield EvenTask(vf.TaskData(prompt=f"Text {number}: say an even one."))


class TwoTurns(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]  # as above
    """Asks twice."""

    APPENDS_SYSTEM_PROMPT, EXECUTES_CODE, NEEDS_CONTAINER = True, False, False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
    ) -> Any:
        messages = [{"role": "user", "content": data.prompt}]
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=60) as client:
            for _ in range(2):
                body = {"model": ctx.model, "messages": messages}
                reply = (await client.post(f"{endpoint}/chat/completions", json=body)).raise_for_status().json()
                messages += [reply["choices"][0]["message"], {"role": "user", "content": "Again."}]
        if data.idx % 3 == 1:
            raise RuntimeError("the service is down")
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
