"""Plain text in, plain text out, for an agent that knows neither messages nor tools."""

from envgym.records import ResetRecord, ResetResult, StepResult
from envgym.signatures import usage
from envgym.wrappers.base import Wrapper, reset_record_of

_HOW_TO_CALL = '<tool_call>{"name": "...", "arguments": {...}}</tool_call>'


class TextOnly(Wrapper):
    """Shows everything as one plain `str`: instructions, tools and how to call them, and the observation.

    The typed records stay in `info`.
    """

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Put what a chat template would show before the first observation."""
        return ResetResult(opening(reset_record_of(result)), result.info)

    def on_step(self, action: str) -> StepResult:
        """Play the turn and drop the observation's type."""
        result = self.env.step(action)
        return result._replace(observation=str(result.observation))


def opening(record: ResetRecord) -> str:
    """Return instructions, tools and first observation as one text."""
    parts = [record.system_prompt]
    if record.tools:
        tools = [f"- {usage(tool.name, tool.parameters)}: {tool.description}" for tool in record.tools]
        parts.append("\n".join(["Tools:", *tools, f"To call one, write {_HOW_TO_CALL}"]))
    parts.append(str(record.observation))
    return "\n\n".join(part for part in parts if part)
