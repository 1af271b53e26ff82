"""One hand-made record of each hard case; tests build them, golden files freeze them."""

from envgym import Action, Ending, Message, Observation, Role, Scored, Split, Task, ToolCall
from envgym.core.builder import TreeBuilder
from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import Group
from envgym.core.tree import Edge, Rewrite, Tree
from envgym.core.turns import Cost, TurnOutcome

TASK = Task(id="train/7", prompt="6 * 7?", payload={"answer": "42"}, split=Split.TRAIN)


def seg(origin: Origin, *ids: int) -> Segment:
    """Build a segment; the log-prob of sampled token i is -i/100."""
    return Segment(
        origin=origin,
        token_ids=ids,
        token_strings=tuple(f"<{i}>" for i in ids),
        behavior_logprobs=tuple(-i / 100 for i in ids) if origin is Origin.POLICY else None,
        policy_version=3 if origin is Origin.POLICY else None,
    )


def prompt(*ids: int) -> Segment:
    return seg(Origin.PROMPT, *ids)


def policy(*ids: int) -> Segment:
    return seg(Origin.POLICY, *ids)


def tool(*ids: int) -> Segment:
    return seg(Origin.TOOL, *ids)


def glue(*ids: int) -> Segment:
    return seg(Origin.TEMPLATE, *ids)


def turn(*segments: Segment, rewrite: Rewrite | None = None) -> Edge:
    """Build an edge that ends a turn; it cost what it sampled."""
    sampled = sum(len(s) for s in segments if s.trains)
    return Edge(segments=segments, ends_turn=True, rewrite=rewrite, cost=Cost(tokens_generated=sampled, env_steps=1))


def paid(value: float, text: str = "done") -> TurnOutcome:
    """Build the outcome of a turn that paid `value`."""
    return TurnOutcome(
        action=Action(text), observation=Observation(), reward=Scored(value=value, components={"answer": value})
    )


CALL = TurnOutcome(
    action=Action("call", content="", tool_calls=[ToolCall(name="calculator", arguments={"expression": "6*7"})]),
    observation=Observation.of([Message(role=Role.TOOL, content="42", name="calculator")]),
)


def start(name: str) -> TreeBuilder:
    """Start a tree whose prompt is 1 2 3 | 4."""
    return TreeBuilder(id=name, env_id="math/arithmetic-v0", task=TASK, seed=11, prompt=[prompt(1, 2, 3), glue(4)])


def fork_inside_a_turn() -> Tree:
    tree = start("fork_inside_a_turn")
    first = tree.add(tree.root, turn(policy(10, 11, 12, 13)), outcome=paid(1.0), ending=Ending.TERMINATED)
    middle = tree.split(first, 2)
    tree.add(middle, turn(policy(20, 21)), outcome=paid(0.0), ending=Ending.TERMINATED)
    return tree.freeze()


def branch_after_a_tool_call() -> Tree:
    tree = start("branch_after_a_tool_call")
    called = tree.add(tree.root, turn(policy(10, 11), glue(5), tool(30, 31), glue(4)), outcome=CALL)
    tree.add(called, turn(policy(12, 13)), outcome=paid(1.0), ending=Ending.TERMINATED)
    tree.add(called, turn(policy(14)), outcome=paid(0.0), ending=Ending.TERMINATED)
    return tree.freeze()


def context_rewrite() -> Tree:
    """One episode, two rows: after the first turn the oldest messages were dropped."""
    tree = start("context_rewrite")
    first = tree.add(tree.root, turn(policy(10, 11)), outcome=CALL)
    tree.add(
        first,
        turn(prompt(1, 10, 11, 30, 4), policy(12, 13), rewrite=Rewrite.TURNS_DROPPED),
        outcome=paid(1.0),
        ending=Ending.TERMINATED,
    )
    return tree.freeze()


def invalid_branch() -> Tree:
    """Three siblings: right, wrong, and one whose sandbox died."""
    tree = start("invalid_branch")
    tree.add(tree.root, turn(policy(10)), outcome=paid(1.0), ending=Ending.TERMINATED)
    tree.add(tree.root, turn(policy(11)), outcome=paid(0.0), ending=Ending.TERMINATED)
    dead = Edge(segments=(policy(12, 13),), ends_turn=False, cost=Cost(tokens_generated=2))
    tree.add(tree.root, dead, ending=Ending.ERROR_TOOL_INFRA, error="sandbox died: killed")
    return tree.freeze()


def injected_hint() -> Tree:
    """A hint was put inside the policy's turn; it never trains."""
    tree = start("injected_hint")
    hinted = turn(policy(10), seg(Origin.INJECTED, 90, 91), policy(11))
    tree.add(tree.root, hinted, outcome=paid(1.0), ending=Ending.TERMINATED)
    return tree.freeze()


def shared_prefix_both_signs() -> Tree:
    """Two rows share a sampled turn; the baseline 0.5 gives them advantages +0.5 and -0.5."""
    tree = start("shared_prefix_both_signs")
    shared = tree.add(tree.root, turn(policy(10, 11), glue(4)), outcome=CALL)
    tree.add(shared, turn(policy(12)), outcome=paid(1.0), ending=Ending.TERMINATED)
    tree.add(shared, turn(policy(13)), outcome=paid(0.0), ending=Ending.TERMINATED)
    return tree.freeze()


def truncated_episode() -> Tree:
    """One paid turn, then the token budget ran out in the middle of the second."""
    tree = start("truncated_episode")
    first = tree.add(tree.root, turn(policy(10), glue(4)), outcome=paid(0.25))
    cut = Edge(segments=(policy(11, 12, 13),), ends_turn=False, cost=Cost(tokens_generated=3))
    tree.add(first, cut, ending=Ending.TRUNCATED_TOKENS)
    return tree.freeze()


HARD_CASES = (
    fork_inside_a_turn,
    branch_after_a_tool_call,
    context_rewrite,
    invalid_branch,
    injected_hint,
    shared_prefix_both_signs,
    truncated_episode,
)


def outcome_tree(name: str, reward: float | None, *, tokens: int = 2) -> Tree:
    """Build a one-turn episode that paid `reward`; None: its sandbox died."""
    tree = start(name)
    said = policy(*range(10, 10 + tokens))
    if reward is None:
        edge = Edge(segments=(said,), ends_turn=False)
        tree.add(tree.root, edge, ending=Ending.ERROR_TOOL_INFRA, error="sandbox died")
    else:
        tree.add(tree.root, turn(said), outcome=paid(reward), ending=Ending.TERMINATED)
    return tree.freeze()


def outcome_group(*rewards: float | None) -> Group:
    """Build a group of one-turn episodes with these rewards; None: infrastructure failed."""
    return Group(key="group", trees=tuple(outcome_tree(f"t{number}", reward) for number, reward in enumerate(rewards)))
