"""What a session of an MCP client is shown, without a server."""

from contextlib import closing

from envgym.authoring import FileTasks, from_rubric
from envgym.connect.mcp_session import McpSession
from envgym.verifiers import Exact


def test_earlier_turns_of_a_prompt_are_shown_with_their_roles() -> None:
    turns = [("system", "Add."), ("user", "1+1?"), ("assistant", "2"), ("user", "And 2+2?")]
    row = {"prompt": [{"role": role, "content": text} for role, text in turns], "answer": "4"}
    tasks = FileTasks({"train": [row], "test": []})
    with closing(McpSession(lambda: from_rubric(tasks, Exact(), system_prompt="Answer."), ())) as session:
        text = session.call("episode_start", {"index": 0}).text
    assert text == "Answer.\n\nAdd.\n\nuser: 1+1?\n\nassistant: 2\n\nuser: And 2+2?"
