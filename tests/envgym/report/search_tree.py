"""A made-up search for a hidden number: forks after turns and inside them, pruned, broken and unfinished; an episode
of messages."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from envgym import Action, Ending, Message, Observation, Role, Scored, Split, Task
from envgym.core.builder import TreeBuilder
from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import trajectories
from envgym.core.tree import Annotation, Edge, SearchStats, Tree
from envgym.core.turns import ZERO, Cost, TurnOutcome
from envgym.report.build import NodeAdvantage

HOSTILE = "</script><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
"""What a policy may say."""

HIDDEN = 37
PRUNED = "the 4 most uncertain turns of the round are kept; this one has entropy 0.31, rank 7"
MAX_TURNS = 7


def pieces(text: str) -> list[str]:
    """Cut text the way sub-word tokenizers do: words with their leading space, digits and signs one by one."""
    return re.findall(r"<\|\w+\|>|\n| ?[A-Za-z_]+|\d| ?[^\sA-Za-z\d]+|\s", text)


def segment(origin: Origin, text: str, rng: np.random.Generator, version: int = 0) -> Segment:
    strings = tuple(pieces(text))
    sampled = origin is Origin.POLICY
    return Segment(
        origin=origin,
        token_ids=tuple(sum(map(ord, piece)) * 7 % 49152 for piece in strings),
        token_strings=strings,
        behavior_logprobs=tuple(float(-(rng.exponential(0.4) ** 2)) for _ in strings) if sampled else None,
        policy_version=version if sampled else None,
    )


class Search:
    """Grows the tree; every random choice comes from one generator."""

    def __init__(self, *, num_nodes: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        task = Task(id="train/37", prompt="Find the number in 1..99.", payload={"number": HIDDEN}, split=Split.TRAIN)
        prompt = [
            segment(Origin.TEMPLATE, "<|im_start|>user\n", self.rng),
            segment(Origin.PROMPT, f"{task.prompt}\nGuess; I say higher or lower.", self.rng),
            segment(Origin.TEMPLATE, "<|im_end|>\n<|im_start|>assistant\n", self.rng),
        ]
        self.tree = TreeBuilder(
            id="step-000002/000/00", env_id="puzzles/guess_number-v0", task=task, seed=2**61 + 1, prompt=prompt
        )
        self.bounds = {self.tree.root: (1, 99)}
        self.turns = {self.tree.root: 0}
        frontier = [self.tree.root] * 3
        while len(self.tree) < num_nodes:
            at = frontier.pop(0) if frontier else self.tree.root
            made = self.guess(at)
            width = int(self.rng.integers(0, 4)) if self.tree[made].ending is None else 0
            frontier += [made] * width
            if self.turns[made] == 2 and width > 1:
                self.fork_inside(made)

    def guess(self, parent: int) -> int:
        low, high = self.bounds[parent]
        number = int(self.rng.integers(low, high + 1))
        thought = f"It lies in {low}..{high}, so I try {number}."
        if self.rng.random() < 0.08:
            thought = f"{thought} Halving {'again and ' * 40}again should do; {HOSTILE}"
        reply = "Right." if number == HIDDEN else "Higher." if number < HIDDEN else "Lower."
        turn = self.turns[parent] + 1
        ending, error, reward = None, None, ZERO
        if number == HIDDEN:
            ending = Ending.TERMINATED
            reward = Scored(value=1.1, components={"answer": 1.0, "speed": 0.1})
        elif turn == MAX_TURNS:
            ending = Ending.TRUNCATED_TURNS
        elif self.rng.random() < 0.04:
            ending, error = Ending.ERROR_ENV, "the world did not answer within 30 s"
        said = segment(Origin.POLICY, f"{thought}<|im_end|>", self.rng, 2)
        glue = segment(Origin.TEMPLATE, "\n<|im_start|>user\n", self.rng)
        heard = segment(Origin.TOOL, reply, self.rng)
        cost = Cost(tokens_generated=len(said), tokens_prefilled=4, env_steps=1, seconds=0.25)
        made = self.tree.add(
            parent,
            Edge(segments=(said, glue, heard), ends_turn=True, cost=cost),
            outcome=TurnOutcome(action=Action(thought), observation=Observation(reply), reward=reward),
            ending=ending,
            error=error,
        )
        new_low, new_high = (number + 1, high) if number < HIDDEN else (low, number - 1)
        self.bounds[made] = (new_low, max(new_low, new_high))
        self.turns[made] = turn
        return made

    def fork_inside(self, handle: int) -> None:
        """Branch after the third token of a turn; the new branch stops at once, pruned."""
        middle = self.tree.split(handle, 3)
        rest = segment(Origin.POLICY, " perhaps somewhere near the top", self.rng, 2)
        cost = Cost(tokens_generated=len(rest))
        cut = self.tree.add(middle, Edge(segments=(rest,), ends_turn=False, cost=cost))
        self.tree.annotate(cut, SearchStats(visits=1, value=0.0, prior=0.125, pruned=PRUNED, spent=Cost()))

    def freeze(self) -> Tree:
        tree = self.tree.freeze()
        spent = [Cost()] * len(tree.nodes)
        visits = [0] * len(tree.nodes)
        sums = [0.0] * len(tree.nodes)
        for index in reversed(range(len(tree.nodes))):
            node = tree.nodes[index]
            visits[index] += 1
            sums[index] += (
                node.outcome.reward.value if node.outcome and isinstance(node.outcome.reward, Scored) else 0.0
            )
            if node.parent is not None:
                spent[node.parent] += spent[index] + node.edge.cost
                visits[node.parent] += visits[index]
                sums[node.parent] += sums[index]
        nodes = [
            node
            if node.stats
            else replace(
                node,
                stats=SearchStats(
                    visits=visits[index], value=sums[index] / visits[index], prior=0.25, spent=spent[index]
                ),
            )
            for index, node in enumerate(tree.nodes)
        ]
        judged = [
            item
            for leaf in tree.leaves[:1]
            for item in (
                Annotation(name="judge", level="episode", node=leaf, value=0.5, verdict="half\x1b right"),
                Annotation(name="scorer", level="turn", node=leaf, value=None, error="no answer within 3 s"),
            )
        ]
        return replace(tree, nodes=tuple(nodes), annotations=tuple(judged))


def search_tree(num_nodes: int = 60, seed: int = 0) -> Tree:
    return Search(num_nodes=num_nodes, seed=seed).freeze()


def outcome_advantages(tree: Tree) -> dict[int, Sequence[NodeAdvantage]]:
    """Return reward minus the mean for every valid episode, on all of its edges: GRPO without a scale."""
    rewards = {item.leaf: item.reward.value for item in trajectories(tree) if isinstance(item.reward, Scored)}
    mean = sum(rewards.values()) / max(len(rewards), 1)
    return {leaf: (0.0, *[reward - mean] * (len(tree.path(leaf)) - 1)) for leaf, reward in rewards.items()}


def spoken(*texts: str) -> Tree:
    """An episode of a policy of messages whose turns say these texts and are answered with them."""
    task = Task(id="train/hard", prompt="", payload={}, split=Split.TRAIN)
    builder = TreeBuilder(id="hard", env_id="texts", task=task, seed=0, prompt=())
    node = builder.root
    for number, text in enumerate(texts, start=1):
        outcome = TurnOutcome(action=Action(text), observation=Observation(text))
        ending = Ending.TERMINATED if number == len(texts) else None
        node = builder.add(node, Edge(segments=(), ends_turn=True), outcome=outcome, ending=ending)
    return replace(builder.freeze(), messages=tuple(Message(role=Role.USER, content=text) for text in texts))
