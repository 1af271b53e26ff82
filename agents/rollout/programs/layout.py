"""The turns of a program's conversations as one path of several rows, which is one episode. Pure.

Of the calls that go on from one turn, the first continues its row. Every other call, and every new conversation, begins
a row with its whole context as a prompt, so that each sampled token trains once. Rows are in the order of their last
turns: the turn that was delivered last ends the episode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from envgym.agents.loop.hints import token_ids
from envgym.agents.loop.path import PathNode
from envgym.agents.loop.state import AgentState, EpisodeSetup, StepEvent, advance
from envgym.agents.rollout.programs.conversations import ProgramTurn, context_of
from envgym.core.messages import Observation
from envgym.core.segments import Origin, Segment
from envgym.core.tree import Edge, Rewrite
from envgym.core.turns import ZERO, Cost, Ending, Reward, total
from envgym.records import StepRecord, step_result

_NO_COST = Cost()


class ProgramPath(NamedTuple):
    """A program's episode as a path."""

    leaf: PathNode
    setup: EpisodeSetup | None
    """Of the first row; None: there is no turn."""


def build_path(
    turns: Sequence[ProgramTurn],
    rewards: Mapping[int, Sequence[Reward]],
    ending: Ending,
    error: str | None = None,
    cost: Cost = _NO_COST,
) -> ProgramPath:
    """Join the turns of all conversations.

    Args:
        turns: in the order in which they were delivered.
        rewards: number of a turn's call -> what it was paid; those of numbers without a turn go to the last turn.
        ending: of the episode.
        error: for an `ERROR_*` ending: what failed.
        cost: of what is no turn; it is added to that of the last one.
    """
    if not turns:
        assert ending.is_error, "no turn could hold the reward"
        edge = Edge(segments=(), ends_turn=False, cost=cost)
        return ProgramPath(PathNode(None, edge, ending=ending, error=error), None)
    rows = _rows(turns)
    first, last = rows[0][0], turns[-1]
    paid = {turn.call.number: list(rewards.get(turn.call.number, ())) for turn in turns}
    for number, unplaced in rewards.items():
        if number not in paid:
            paid[last.call.number] += unplaced
    node = _root(first)
    for row in rows:
        for turn, following in zip(row, (*row[1:], None), strict=True):
            closed = _closed(turn, following)
            edge = closed.edge
            if turn is row[0]:
                edge = _begin_row(turn, edge, is_first=row is rows[0])
            reward = total(paid[turn.call.number])
            assert closed.outcome is not None, "a turn has an outcome"
            node = PathNode(node, edge, replace(closed.outcome, reward=reward))
    leaf = replace(node, edge=replace(node.edge, cost=node.edge.cost + cost), ending=ending, error=error)
    before = first.call.state
    return ProgramPath(leaf, before.episode._replace(messages=before.history.flat))


def _rows(turns: Sequence[ProgramTurn]) -> list[list[ProgramTurn]]:
    """Return the turns row by row; a row is a turn with the first of those that go on from it, and so on."""
    rows: list[list[ProgramTurn]] = []
    row_of: dict[int, list[ProgramTurn]] = {}  # number of a row's last turn -> the row
    for turn in turns:
        parent = turn.call.parent
        row = None if parent is None else row_of.pop(parent.call.number, None)
        if row is None:
            row = []
            rows.append(row)
        row.append(turn)
        row_of[turn.call.number] = row
    order = {turn.call.number: place for place, turn in enumerate(turns)}
    return sorted(rows, key=lambda row: order[row[-1].call.number])


def _closed(turn: ProgramTurn, following: ProgramTurn | None) -> PathNode:
    """Return a turn with what follows it in its row, as the loop recorded it."""
    if following is not None:
        node = following.call.state.path
    else:
        record = StepRecord(
            turn=turn.state.num_turns,
            action=turn.action,
            observation=Observation(),
            reward=ZERO,
            ending=Ending.TERMINATED,
            tool_calls=0,
            tool_errors=0,
        )
        node = advance(turn.state, StepEvent(step_result(record)))[0].path
    assert node is not None, "a turn is a node"
    return node


def _root(first: ProgramTurn) -> PathNode:
    """Return the root, whose edge holds the context of the first turn."""
    before = first.call.state
    is_new = first.call.parent is None
    assert before.path is not None, "the prompt was rendered"
    if is_new:
        return PathNode(None, before.path.edge)
    return PathNode(None, Edge(segments=_context(before), ends_turn=False))


def _begin_row(turn: ProgramTurn, edge: Edge, *, is_first: bool) -> Edge:
    """Return the first edge of a row: its context stands before it, or on the root."""
    before = turn.call.state
    segments = edge.segments[len(before.pending) :]
    if is_first:
        return replace(edge, segments=segments, rewrite=None, context=())
    context = _context(before)
    rewrite = Rewrite.CONVERSATION if context else None
    return replace(edge, segments=context + segments, rewrite=rewrite, context=before.history.flat)


def _context(state: AgentState) -> tuple[Segment, ...]:
    """Return the context that the policy was given, as a prompt; nothing where it is not known in tokens."""
    parts = context_of(state)
    if not parts:
        return ()
    strings = tuple(string for part in parts for string in part.token_strings)
    return (Segment(origin=Origin.PROMPT, token_ids=token_ids(parts), token_strings=strings),)
