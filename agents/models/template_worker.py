"""The process that renders chat templates: started by `envgym.agents.rendering.template`, never imported by it.

A template is a program that comes with a model. transformers runs it in Jinja's immutable sandbox, which keeps it from
everything but time and memory; here the kernel bounds both. It reads one JSON request per line and answers each in one.
"""

import json
import os
import sys
from typing import Any

from envgym.runtime.processes.handles import read_memory
from envgym.runtime.processes.helper import limit_process, limit_request, take_output

MEMORY_BYTES = 2**30
MAX_CHARACTERS = 2**24
"""Of a rendered conversation."""


def main() -> None:
    """Serve requests until the input ends."""
    say = take_output()
    from transformers.utils.chat_template_utils import render_jinja_template

    limit_process(read_memory(os.getpid()).virtual + MEMORY_BYTES)
    say(ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        limit_request(request.pop("cpu_s"))
        say(**_answer(render_jinja_template, request))


def _answer(render: Any, request: dict[str, Any]) -> dict[str, str]:  # Any: a function of a library without types
    messages, variables = request.pop("messages"), request.pop("variables")
    try:
        text = render(conversations=[messages], **request, **variables)[0][0]
    except Exception as error:  # noqa: BLE001  # a template raises anything
        return {"fault": f"{type(error).__name__}: {error}"[:1000]}
    if len(text) > MAX_CHARACTERS:
        return {"fault": f"a text of {len(text):,} characters, of which {MAX_CHARACTERS:,} are allowed"}
    return {"text": text}


if __name__ == "__main__":
    main()
