"""Failed calls of tools are counted by tool and answer, and shown where an evaluation is."""

import json
from collections.abc import Sequence

import envgym
from envgym.agents.evaluation.metrics.tools import MAX_TOOL_FAILURES, count_tool_failures
from envgym.authoring import TaskDraft, from_rubric
from envgym.cli.results import evaluation_lines
from envgym.core.messages import Message
from envgym.core.serialize import tree_from_json, tree_to_json
from envgym.core.trajectory import Trajectory, trajectories
from envgym.report.build import build_evaluation
from envgym.report.data import ToolFailure
from envgym.verifiers import Exact


def query(text: str) -> str:
    """Ask the database."""
    if text == "good":
        return "7"
    raise KeyError(text)


def episode(*calls: str) -> Trajectory:
    def policy(messages: Sequence[Message]) -> str:
        turn = sum(message.role == "assistant" for message in messages)
        return calls[turn] if turn < len(calls) else "7"

    env = from_rubric([TaskDraft(prompt="?", payload={"answer": "7"})], Exact(), tools=[query])
    split = "train" if env.tasks.size(envgym.Split.TRAIN) else "test"
    return envgym.play_episode(env, policy, split=split)


def call(text: str, name: str = "query") -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': {'text': text}})}</tool_call>"


BAD = "query failed: KeyError: 'bad'"


def test_failures_are_counted_by_tool_and_answer_over_episodes() -> None:
    found = count_tool_failures(
        [
            episode(call("bad"), call("bad"), call("good")),
            episode(call("bad")),
            episode(call("worse") + call("good"), "<tool_call>{</tool_call>"),
            episode(call("good")),
        ]
    )
    assert found[0] == ToolFailure(tool="query", message=BAD, calls=3, episodes=2)
    assert found[1] == ToolFailure(tool="query", message="query failed: KeyError: 'worse'", calls=1, episodes=1)
    assert [(item.tool, item.calls) for item in found[2:]] == [("", 1)], "a call that could not be read"


def test_a_saved_episode_has_the_same_failures() -> None:
    played = episode(call("bad"), call("good"))
    (read,) = trajectories(tree_from_json(json.loads(json.dumps(tree_to_json(played.tree)))))
    assert count_tool_failures([read]) == count_tool_failures([played]) != ()


def test_only_the_most_frequent_failures_are_kept() -> None:
    many = [episode(*(call(str(number)) for number in range(MAX_TOOL_FAILURES + 1)), call("3"))]
    found = count_tool_failures(many)
    assert (len(found), found[0].calls, found[0].message) == (MAX_TOOL_FAILURES, 2, "query failed: KeyError: '3'")


def test_terminal_shows_the_first_failures_and_says_how_many_there_are() -> None:
    failures = [ToolFailure(tool="query", message=BAD, calls=9, episodes=4)]
    failures += [ToolFailure(tool="", message=f"m{number}", calls=1, episodes=1) for number in range(6)]
    evaluation = build_evaluation(
        step=0, label="held-out", greedy=True, successes={"a": [True]}, tool_failures=failures
    )
    lines = evaluation_lines(evaluation)[-6:]
    assert lines[0] == f"tool errors  9 in 4 episode(s): query: {BAD}"
    assert lines[1] == "             1 in 1 episode(s): malformed call: m0"
    assert lines[5] == "             and 2 other(s), which the report lists"
    quiet = build_evaluation(step=0, label="held-out", greedy=True, successes={"a": [True]})
    assert not any("tool errors" in line for line in evaluation_lines(quiet))


def test_long_message_is_cut_after_a_word_in_the_terminal() -> None:
    for message, shown in ((f"{'a' * 70} {'b' * 70}", f"{'a' * 70} …"), ("c" * 150, f"{'c' * 120} …"), (BAD, BAD)):
        failures = [ToolFailure(tool="query", message=message, calls=1, episodes=1)]
        evaluation = build_evaluation(
            step=0, label="held-out", greedy=True, successes={"a": [True]}, tool_failures=failures
        )
        assert evaluation_lines(evaluation)[-1] == f"tool errors  1 in 1 episode(s): query: {shown}"
