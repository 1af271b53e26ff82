"""Time to render what follows a turn, after ever longer histories: it must not grow.

Run: python benchmarks/render_delta.py [--repeat 2000]. Prints one JSON line. For comparison `start_us` is what it would
take to render the whole conversation anew each turn.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from envgym.agents.models.tiny import tiny_tokenizer
from envgym.agents.protocols import FinishReason, Generation
from envgym.agents.rendering.factory import AutoRendererFactory
from envgym.core.messages import Action, Message, Observation, Role, ToolCall

TURNS = (1, 10, 100, 1000)
LIMIT_GROWTH = 1.5
"""Median time after 1,000 turns over that after one; the rest is noise."""


def microseconds(call: Callable[[], object], repeat: int) -> float:
    """Return the median time of a call."""
    call()
    times: list[float] = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return round(median(times) * 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=2000)
    options = parser.parse_args()
    renderer = AutoRendererFactory()(tiny_tokenizer())
    call = ToolCall(name="calculator", arguments={"expression": "12*(3+4)"})
    action = Action("", content="", thinking="Use the tool.", tool_calls=[call])
    observation = Observation.of([Message(role=Role.TOOL, content="84", name="calculator")])
    ids = renderer.encode_action(action)
    generation = Generation(
        token_ids=ids,
        behavior_logprobs=(0.0,) * len(ids),
        raw_logprobs=None,
        finish_reason=FinishReason.STOP,
        policy_version=0,
    )
    task = Message(role=Role.USER, content="What is 12 * (3 + 4)?")
    histories = {turns: (task, *(action.message, *observation.messages) * turns) for turns in TURNS}
    extend = {
        str(turns): microseconds(partial(renderer.extend, history, generation, observation, []), options.repeat)
        for turns, history in histories.items()
    }
    start = {
        str(turns): microseconds(partial(renderer.start, history, []), max(options.repeat // (20 * turns), 3))
        for turns, history in histories.items()
    }
    growth = round(extend[str(TURNS[-1])] / extend[str(TURNS[0])], 2)
    result = {"benchmark": "render_delta", "extend_us": extend, "start_us": start, "growth": growth}
    print(json.dumps({**result, "limit_growth": LIMIT_GROWTH, "python": platform.python_version()}))


if __name__ == "__main__":
    main()
