"""Code blocks: which fences are calls."""

from envgym.core.messages import Action, ToolCall
from envgym.parsing import parse_action, text_format


def code_of(text: str) -> list[object]:
    return [call.arguments["code"] for call in parse_action(text, "code_block").tool_calls]


def test_every_python_block_is_a_call_and_the_rest_is_content() -> None:
    text = "Let me see.\n```python\nx = 6\n\nprint(x * 7)\n```\nand\n```py\nprint(1)\n```"
    assert code_of(text) == ["x = 6\n\nprint(x * 7)", "print(1)"]
    assert parse_action(text, "code_block").content == "Let me see.\nand"


def test_blocks_of_other_languages_are_content_also_where_they_hold_python_fences() -> None:
    text = "````text\n```python\nprint(1)\n```\n````"
    assert code_of(text) == []
    assert parse_action(text, "code_block").content == text


def test_inline_backticks_are_no_block() -> None:
    assert code_of("use ```python x``` or `y`") == []


def test_an_unclosed_block_is_malformed() -> None:
    action = parse_action("```python\nprint(1)", "code_block")
    assert action.tool_calls == ()
    assert action.malformed == ("The python block was not run: close it with a line of three backticks.",)


def test_code_that_holds_fences_is_written_between_longer_ones() -> None:
    code = 's = """\n```python\n"""'
    written = text_format("code_block").write(Action(tool_calls=[ToolCall(name="python", arguments={"code": code})]))
    assert written == f"````python\n{code}\n````"
    assert code_of(written) == [code]
