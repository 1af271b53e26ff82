"""A wrapper that ends long thoughts: a turn without an answer is told that time is up, and another one may answer."""

from collections.abc import Sequence
from dataclasses import replace

from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.turns import ZERO
from envgym.errors import InvalidInput
from envgym.parsing import parse_action
from envgym.records import ResetResult, StepRecord, StepResult, step_result
from envgym.wrappers.base import AnyEnv, Wrapper, record_of

MARKS = ("</answer>", "\\boxed{", "####")
TIME_IS_UP = "Time is up. Stop thinking, and give your final answer now."


class ForcedAnswer(Wrapper):
    """Asks for the answer where a turn has none, once an episode; what comes next goes to the env, whatever it is.

    A turn has an answer if its content, without its thinking, holds one of `marks`; a turn with a tool call goes to the
    env as it is. With `agent.on_length=close` a turn of `agent.max_turn_tokens` tokens has no answer: its thoughts are
    cut there, instead of the episode. The words that cut them are the env's, so that they do not train.

    Source: 2510.13786 (ScaleRL), forced length interruptions; there the words stand inside the same turn.
    """

    def __init__(self, env: AnyEnv, *, text: str = TIME_IS_UP, marks: Sequence[str] = MARKS) -> None:
        """Wrap `env`.

        Args:
            env: Any env.
            text: What is said to a turn without an answer.
            marks: Texts of which an answer holds one.

        Raises: InvalidInput: there is no text, or no mark.
        """
        super().__init__(env)
        where, do = "ForcedAnswer", "leave it at its default"
        for name, value in (("text", text), ("marks", marks)):
            InvalidInput.unless(value, name, "hold something", repr(value), where=where, do=do)
        self.text, self.marks = text, tuple(marks)
        self._has_asked = False

    def on_reset(self, result: ResetResult) -> ResetResult:
        self._has_asked = False
        return result

    def on_step(self, action: str) -> StepResult:
        turn = action if isinstance(action, Action) else parse_action(action)
        has_call = bool(turn.tool_calls) or (bool(turn.malformed) and bool(turn.content))
        if self._has_asked or has_call or any(mark in turn.content for mark in self.marks):
            return step_result(replace(record_of(self.env.step(action)), turn=self._turn))
        self._has_asked = True
        record = StepRecord(
            turn=self._turn,
            action=turn,
            observation=Observation.of((Message(role=Role.USER, content=self.text),)),
            reward=ZERO,
            ending=None,
            tool_calls=0,
            tool_errors=0,
        )
        return step_result(record)
