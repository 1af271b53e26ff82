"""Runs of hand-made trees: random episodes with calls, forks, rewrites and sub-conversations, and what they say."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from envgym import Action, Ending, Invalid, Message, Observation, Role, Scored, Split, Task, ToolCall
from envgym.core.builder import TreeBuilder
from envgym.core.tree import Edge, Rewrite, Tree
from envgym.core.turns import TurnOutcome
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import episode_rows
from envgym.tools import ToolSpec
from tests.support.example_trees import policy, prompt, tool

TEXTS = st.text("ab <>{}\"'\\\n\u2028é", min_size=1, max_size=8).filter(str.strip)
TOOLS = (
    ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {"a": {"type": "integer"}}}),
    ToolSpec(name="look", description="", parameters={"type": "object", "properties": {"b": {"type": "string"}}}),
)
CONFIG = {"run": {"seed": 7}, "model": {"name": "tiny"}, "envs": [{"id": "math/arithmetic-v0"}]}

Pairs = tuple[tuple[Message, bool], ...]
"""Messages, and whether the policy wrote each in this context."""
Draw = Callable[[st.SearchStrategy[Any]], Any]


class Spoken(NamedTuple):
    """A tree, and what is said in each context of each episode."""

    tree: Tree
    contexts: Mapping[tuple[int, int], Pairs]
    """(leaf, number of the context) -> its messages up to the last one of the policy."""


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def assistant(text: str = "", **fields: Any) -> Message:
    return Message(role=Role.ASSISTANT, content=text, **fields)


def acted(message: Message) -> Action:
    return Action(
        message.content or "call",
        content=message.content,
        thinking=message.thinking,
        tool_calls=message.tool_calls,
    )


def _turn_messages(draw: Draw) -> list[Message]:
    """Draw a message of the policy, with calls and their results, or a text and a reply."""
    thinking = draw(st.none() | TEXTS)
    calls = draw(
        st.lists(
            st.builds(
                ToolCall,
                name=st.sampled_from([spec.name for spec in TOOLS]),
                arguments=st.dictionaries(st.sampled_from("ab"), st.none() | st.integers(0, 9) | TEXTS, max_size=2),
                id=st.none() | st.sampled_from(["c0", "c1"]),
            ),
            max_size=2,
        )
    )
    if not calls:
        return [assistant(draw(TEXTS), thinking=thinking), user(draw(TEXTS))]
    said = assistant(draw(st.just("") | TEXTS), thinking=thinking, tool_calls=tuple(calls))
    results = [Message(role=Role.TOOL, content=draw(TEXTS), tool_call_id=call.id, name=call.name) for call in calls]
    return [said, *results]


def _reward(draw: Draw) -> Scored | Invalid:
    value = draw(st.none() | st.sampled_from([0.0, 0.5, 1.0]))
    if value is None:
        return Invalid(cause=Ending.ERROR_TOOL_INFRA, reason="the calculator stopped")
    return Scored(value=value, components={"answer": value})


@st.composite
def spoken_trees(draw: Draw, tree_id: str = "step-000001/000/00", split: Split = Split.TRAIN) -> Spoken:
    """Draw a tree of up to a few turns in depth, whose messages are known."""
    opening = [Message(role=Role.SYSTEM, content=draw(TEXTS))] if draw(st.booleans()) else []
    opening.append(user(draw(TEXTS)))
    task = Task(id="train/7", prompt="6 * 7?", payload={"answer": "42"}, split=split)
    tree = TreeBuilder(id=tree_id, env_id="math/arithmetic-v0", task=task, seed=11, prompt=[prompt(1, 2)])
    contexts: dict[tuple[int, int], Pairs] = {}

    def grow(parent: int, earlier: Sequence[Pairs], history: list[tuple[Message, bool]], depth: int) -> None:
        said, *replies = _turn_messages(draw)
        rewrite = draw(st.none() | st.sampled_from(Rewrite)) if depth else None
        context: tuple[Message, ...] = ()
        is_rendered_again = rewrite is Rewrite.TEMPLATE or (rewrite is Rewrite.THINKING_DROPPED and draw(st.booleans()))
        if rewrite is not None and not is_rendered_again:
            context = (user(draw(TEXTS)), assistant(draw(TEXTS)), user(draw(TEXTS)))
            earlier, history = [*earlier, _without_replies(history)], [(message, False) for message in context]
        segments = (*((prompt(1, 9),) if rewrite else ()), policy(10, 11), tool(12))
        is_leaf = depth == 3 or draw(st.booleans())
        reward = _reward(draw) if is_leaf else Scored(value=0.0)
        ending = (reward.cause if isinstance(reward, Invalid) else Ending.TERMINATED) if is_leaf else None
        node = tree.add(
            parent,
            Edge(segments=segments, ends_turn=True, rewrite=rewrite, context=context),
            outcome=TurnOutcome(action=acted(said), observation=Observation.of(replies), reward=reward),
            ending=ending,
            error=reward.reason if isinstance(reward, Invalid) else None,
        )
        history = [*history, (said, True), *((message, False) for message in replies)]
        if is_leaf:
            for number, messages in enumerate([*earlier, _without_replies(history)]):
                contexts[node, number] = messages
            return
        for _ in range(draw(st.integers(1, 2))):
            grow(node, earlier, history, depth + 1)

    for _ in range(draw(st.integers(1, 2))):
        grow(tree.root, [], [(message, False) for message in opening], 0)
    return Spoken(tree.freeze(messages=tuple(opening), tools=TOOLS), contexts)


def _without_replies(history: Sequence[tuple[Message, bool]]) -> Pairs:
    last = max(place for place, (message, _) in enumerate(history) if message.role is Role.ASSISTANT)
    return tuple(history[: last + 1])


def recorded_run(
    path: Path, trees: Sequence[Tree], *, step: int = 1, label: str = "train", **columns: Any
) -> RunDirectory:
    """Write a run with the episodes of these trees."""
    run = RunDirectory.create(path, name="demo", config=CONFIG) if not path.exists() else RunDirectory.open(path)
    run.write_episodes(step, episode_rows(trees, step=step, **columns), label=label)
    return run


def answer(
    text: str,
    reward: float,
    *,
    place: str,
    split: Split = Split.TRAIN,
    number: int = 0,
    calls: tuple[ToolCall, ...] = (),
) -> Tree:
    """Return an episode of one turn."""
    task = Task(id=f"{split}/{number}", prompt="Q", payload={"number": number, "split": split.value}, split=split)
    tree = TreeBuilder(id=place, env_id="math/arithmetic-v0", task=task, seed=11, prompt=[prompt(1, 2)])
    outcome = TurnOutcome(
        action=acted(assistant(text, tool_calls=calls)), observation=Observation(), reward=Scored(value=reward)
    )
    edge = Edge(segments=(policy(10, 11),), ends_turn=True)
    tree.add(tree.root, edge, outcome=outcome, ending=Ending.TERMINATED)
    return tree.freeze(messages=(user(f"Question {number}"),))
