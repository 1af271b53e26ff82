"""Plain text both ways, with everything an agent must know in the first text."""

from envgym.wrappers import TextOnly
from tests.support.toys import Counter, Sums


def test_first_text_holds_instructions_tools_and_task() -> None:
    env = TextOnly(Counter())
    text = env.reset(seed=1).observation
    assert type(text) is str
    assert text == (
        "Use the tool to count, then say DONE.\n\n"
        "Tools:\n"
        "- add(amount: integer): Add to the counter.\n"
        'To call one, write <tool_call>{"name": "...", "arguments": {...}}</tool_call>\n\n'
        f"{Counter().reset(seed=1).observation}"
    )


def test_later_texts_are_plain_observations() -> None:
    env = TextOnly(Counter())
    env.reset(seed=1)
    result = env.step('<tool_call>{"name": "add", "arguments": {"amount": 5}}</tool_call>')
    assert type(result.observation) is str
    assert result.observation == str(result.info["envgym"].observation)
    assert result.info["envgym"].tool_calls == 1


def test_without_instructions_and_tools_the_task_stands_alone() -> None:
    assert TextOnly(Sums()).reset(seed=1).observation == Sums().reset(seed=1).observation
