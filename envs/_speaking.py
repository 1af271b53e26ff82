"""How oracles speak."""

from envgym.core.json_types import JsonValue
from envgym.core.messages import Action, ToolCall
from envgym.parsing import parse_action, text_format


def calling(tool: str, **arguments: JsonValue) -> Action:
    """Return the action that calls one tool, with the text that a plain `step(str)` reads as this call."""
    call = Action(content="", tool_calls=[ToolCall(name=tool, arguments=arguments)])
    return parse_action(text_format("hermes").write(call))
