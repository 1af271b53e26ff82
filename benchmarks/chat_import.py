"""Messages of chat data that become demonstrations in a second of CPU time, tokenising included.

Run: python benchmarks/chat_import.py [--conversations 2000]. Prints one JSON line. Each conversation has nine messages,
with a tool, calls and results. All differ, and the template only appends. The CPU time of the processes that render
chat templates counts too.
"""

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # its stubs are a package of their own

from envgym.agents.loop.agent import AgentSettings, make_agent
from envgym.agents.models.tiny import tiny_tokenizer
from envgym.config.plugins import Choice
from envgym.runtime.event_loop import run_coroutine
from envgym.trainer.methods.protocols import CURRICULUM
from envgym.trainer.workflows.chat_demonstrations import ChatDemonstrations
from envgym.trainer.workflows.demonstrations import DemonstrationRequest

LEAST_MESSAGES_S = 2000
TOOL = {"name": "add", "description": "Add two numbers.", "parameters": {"type": "object", "properties": {}}}


def conversation(number: int) -> dict[str, object]:
    messages: list[dict[str, object]] = [{"role": "system", "content": "You are a calculator. Answer in one line."}]
    for turn in range(2):
        call = {"name": "add", "arguments": json.dumps({"a": number, "b": turn})}
        messages += [
            {"role": "user", "content": f"What is {number} plus {turn}? Use the tool, then answer in one line."},
            {"role": "assistant", "tool_calls": [{"id": f"c{turn}", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": str(number + turn)},
            {"role": "assistant", "content": f"{number} plus {turn} is {number + turn}."},
        ]
    return {"messages": messages, "tools": [{"type": "function", "function": TOOL}]}


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children so far."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (own, *own.children(recursive=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=2000)
    options = parser.parse_args()
    agent = make_agent(AgentSettings(max_context_tokens=4096), tiny_tokenizer())
    request = DemonstrationRequest(
        num_episodes=options.conversations,
        success_at=1.0,
        seed=0,
        agent=agent,
        env_sources={},
        curriculum=CURRICULUM.build(Choice(name="uniform")),
        on_progress=lambda *_: None,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chats.jsonl"
        rows = [conversation(number) for number in range(options.conversations)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        source = ChatDemonstrations(path=str(path))
        start, cpu_start = time.perf_counter(), cpu_seconds()
        num_messages = sum(len(conversation.messages) for _, conversation in source.conversations())
        read_cpu_s = cpu_seconds() - cpu_start
        demonstrations = run_coroutine(source(request))
        seconds, cpu_s = time.perf_counter() - start, cpu_seconds() - cpu_start
    result = {
        "benchmark": "chat_import",
        "conversations": len(demonstrations.imitated),
        "messages": num_messages,
        "messages_cpu_s": round(num_messages / cpu_s),
        "read_messages_cpu_s": round(num_messages / read_cpu_s),
        "messages_wall_s": round(num_messages / seconds),
        "least_messages_s": LEAST_MESSAGES_S,
    }
    print(json.dumps({**result, "python": platform.python_version()}))


if __name__ == "__main__":
    main()
