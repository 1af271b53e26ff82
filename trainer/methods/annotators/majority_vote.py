"""The majority answer of a group as its label: episodes are paid for agreeing with it, and no reference is needed."""

import asyncio
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from envgym.agents.search.scorers import answer_in
from envgym.config.settings import Settings
from envgym.core.json_types import visible
from envgym.core.messages import Message
from envgym.core.tasks import Split, Task
from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Annotation
from envgym.errors import InvalidInput
from envgym.trainer.methods.annotators.base import AnnotateContext, annotate_trees
from envgym.verifiers.extract import agreed_answer, final, whole_answer
from envgym.verifiers.math import Math

Equal = Callable[[str, str], bool]
"""Whether two answers are the same."""


class MajorityVote(Settings):
    r"""Write 1 on every valid episode whose answer is the label, and 0 on the others. Source: 2504.16084 (TTRL).

    The label is the answer that most valid episodes gave, the first of equals. The answer of an episode is the marked
    part of its last action (`\boxed{}`, `<answer>`, `####`), or its calls, or else its whole text; an episode that was
    cut inside a turn, or whose last action has no answer, does not vote and has 0. The hidden answer is never read.

    Deviations: answers that are equal by `equality` vote together, where the authors' code counts equal texts and
    compares as mathematics only afterwards; all episodes that vote also train; `min_share` is ours.
    """

    name: str = "majority_vote"
    """Of the annotations."""
    equality: Literal["text", "math"] = "text"
    """When answers are equal: as texts, letter case and spaces aside, or as the verifier `math` compares them."""
    min_share: float = Field(default=0.0, ge=0, le=1)
    """Least share of the valid episodes that must agree; a group with less has no label, and all its values are 0."""

    async def __call__(self, group: Group, context: AnnotateContext) -> Group:
        """Return the group with 1 or 0 on its valid episodes. Raises: EnvFailure: answers could not be compared."""
        del context
        read, equal = _EQUALITIES[self.equality]
        answers = [read(action) if (action := _last_action(episode)) else None for episode in group.valid]
        vote = await asyncio.to_thread(find_majority, answers, equal=equal)
        agrees: Sequence[bool] = [False] * len(answers)
        verdict = "no answer"
        if vote is not None:
            verdict = f"{vote.num_votes} of {len(answers)} for {visible(vote.label)}"
            if vote.num_votes / len(answers) >= self.min_share:
                agrees = vote.agrees
        annotations: dict[str, list[Annotation]] = {tree.id: [] for tree in group.trees}
        for episode, value in zip(group.valid, agrees, strict=True):
            annotations[episode.tree.id].append(
                Annotation(name=self.name, level="episode", node=episode.leaf, value=float(value), verdict=verdict)
            )
        return annotate_trees(group, annotations)


# ---- pure parts ------------------------------------------------------------------------------------------------------


class Vote(NamedTuple):
    """The majority answer of a group."""

    label: str
    num_votes: int
    agrees: Sequence[bool]
    """Of every answer that was passed, whether it equals the label."""


def find_majority(answers: Sequence[str | None], *, equal: Equal) -> Vote | None:
    """Return the answer that most others are equal to, the first of equals; None: nobody gave one.

    Args:
        answers: of every episode; None: it gave none.
        equal: compares the texts of two answers, each pair once.

    Raises: EnvFailure: they could not be compared.
    """
    counts = Counter(answer for answer in answers if answer is not None)
    texts = list(counts)
    if not texts:
        return None
    equals: dict[str, set[str]] = {text: {text} for text in texts}
    for place, one in enumerate(texts):
        for other in texts[place + 1 :]:
            if equal(one, other):
                equals[one].add(other)
                equals[other].add(one)
    votes: Mapping[str, int] = {text: sum(counts[other] for other in equals[text]) for text in texts}
    label = max(texts, key=votes.__getitem__)
    return Vote(label, votes[label], tuple(answer in equals[label] for answer in answers))


def same_expression(first: str, second: str) -> bool:
    """Return whether two answers are equal as texts, or as mathematics. Raises: EnvFailure: none could be compared."""
    if first == second:
        return True
    label = Task(id="majority_vote", prompt="", payload={"answer": first}, split=Split.TRAIN)
    try:
        return Math(extract=whole_answer)(second, label).score == 1.0
    except InvalidInput:  # the first is no expression
        return False


def _last_action(episode: Trajectory) -> Message | None:
    outcome = episode.turns[-1].outcome if episode.turns else None
    return None if outcome is None else outcome.action.message


_EQUALITIES: Mapping[str, tuple[Callable[[Message], str | None], Equal]] = {
    "text": (answer_in, operator.eq),
    "math": (lambda action: final(action.content).answer or agreed_answer(action.content), same_expression),
}
"""How an answer is read, and when two are equal."""
