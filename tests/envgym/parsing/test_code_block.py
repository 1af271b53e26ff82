"""Code blocks: which fences are calls."""

import time

from envgym.core.messages import Action, ToolCall
from envgym.parsing import parse_action, text_format
from envgym.parsing.fences import read_fences


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


def test_calls_are_read_from_fences_as_models_write_them() -> None:
    for opening, line in [
        ('```python title="a.py"', "{}"),
        ("```{.python}", "{}"),
        ("```Python3.11", "{}"),
        ("~~~python", "{}"),
        ("  1. ```python", "     {}"),
        ("      ```python", "      {}"),
        ("> ```python", "> {}"),
    ]:
        fence = "~~~" if "~" in opening else "```"
        text = "\n".join([opening, *(line.format(code) for code in ("if 1:", "    print(2)", fence))])
        assert code_of(text) == ["if 1:\n    print(2)"] == code_of(text.replace("\n", "\r\n"))


def test_a_fence_within_a_line_of_text_is_no_call() -> None:
    assert code_of("Write it as ```python\nprint(1)\n```") == []


def test_a_line_of_spaces_before_backticks_is_read_in_linear_time() -> None:
    start = time.process_time()
    for text in (" " * 200_000 + "x```", "\t" * 200_000 + "x~~~", "> " * 100_000 + "x```", "- " * 100_000 + "x```"):
        assert code_of(text) == []
    assert time.process_time() - start < 5.0


def test_a_fence_in_a_docstring_is_code_unless_nothing_else_closes_the_block() -> None:
    code = 'def f(x):\n    """Double.\n\n    ```\n    f(2)\n    ```\n    """\n    return 2 * x'
    (block,) = read_fences(f"```python\n{code}\n```\nDone.")
    assert (block.text, block.is_closed) == (code, True)
    (listed,) = read_fences("1. Code:\n   ```python\n   x = 1\n   ```\n")
    assert listed.text == "x = 1"
    (deep,) = read_fences("```python\nx = 1\n    ```\nDone.")
    assert (deep.text, deep.is_closed) == ("x = 1", True)
