"""RLPR: how probable the reference answer is after the policy's own reasoning, in place of a verifier."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import Field

from envgym.agents.loop.agent import Agent
from envgym.agents.protocols import Renderer
from envgym.config.settings import Settings
from envgym.core.messages import Action
from envgym.core.task_needs import TaskNeed
from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Annotation
from envgym.trainer.methods.annotators.base import AnnotateContext, LogprobModel, annotate_trees
from envgym.trainer.methods.annotators.judge import reference_answer, reference_need


class Rlpr(Settings):
    """Write 0.9 · max(0, B - A) + 0.1 · format on every valid episode. Source: 2506.18254, and the authors' code.

    B is the arithmetic mean of the policy's probabilities of the reference answer's tokens, spliced in place of the
    last answer between the tags, after the sampled tokens before it, id for id. Where no answer is opened, the tag and
    the reference follow all that was sampled. A is the same mean with the reference straight after the prompt and a
    space, under the model as the run began. Format is 1 where each of `tags` stands once in the last action, in order.

    Deviations: B is not rounded to bfloat16, and a text that repeats itself has no penalty of its own.
    """

    name: str = "rlpr"
    """Of the annotations."""
    initial: str = "initial"
    """Which of the run's `models` gives A: a `snapshot`."""
    reference: str = "answer"
    """Key of the reference answer in a task's payload."""
    answer_tags: tuple[str, str] = ("<answer>", "</answer>")
    """Between which the answer stands."""
    tags: tuple[str, ...] = ("<think>", "</think>", "<answer>", "</answer>")
    """What an action in the right format holds once each, in this order."""
    format_weight: float = Field(default=0.1, ge=0, le=1)
    """Share of the format in the reward."""

    def required_models(self) -> dict[str, type]:
        """Return the models that score tokens: the policy, and the model as the run began."""
        return {"policy": LogprobModel, self.initial: LogprobModel}

    def task_needs(self) -> Sequence[TaskNeed]:
        return [reference_need(self.reference)]

    async def __call__(self, group: Group, context: AnnotateContext) -> Group:
        if not group.valid:
            return group
        answer = reference_answer(context.task, self.reference)
        initial = context.models[self.initial]
        assert isinstance(initial, LogprobModel), "checked before the run began"
        renderer = context.agent.renderer
        alone = spliced_prompt(group.valid[0], answer, renderer)
        (base,) = await _mean_probabilities(initial, [alone])
        spliced = [self.spliced(episode, answer, context.agent) for episode in group.valid]
        means = await _mean_probabilities(context.policy, spliced)
        annotations: dict[str, list[Annotation]] = {tree.id: [] for tree in group.trees}
        for episode, mean in zip(group.valid, means, strict=True):
            well_formed = is_well_formed(last_action(episode), self.tags)
            value = rlpr_reward(mean, base, well_formed=well_formed, format_weight=self.format_weight)
            verdict = f"B={mean:.4g} A={base:.4g} format={int(well_formed)}"
            annotations[episode.tree.id].append(
                Annotation(name=self.name, level="episode", node=episode.leaf, value=value, verdict=verdict)
            )
        return annotate_trees(group, annotations)

    def spliced(self, episode: Trajectory, answer: str, agent: Agent) -> "Spliced":
        """Return the tokens of an episode with the reference in place of its last answer."""
        before, sampled = sampled_action(episode, agent.renderer)
        return splice(before, sampled, answer, agent.renderer, self.answer_tags[0])


class Spliced(NamedTuple):
    """A sequence of tokens, of which those from a place on are the reference's."""

    token_ids: tuple[int, ...]
    first: int


# ---- pure parts ------------------------------------------------------------------------------------------------------


def mean_probability(logprobs: Sequence[float]) -> float:
    """Return the arithmetic mean of exp(logprob), in [0, 1]; the logprobs are nats, at least one."""
    return math.fsum(map(math.exp, logprobs)) / len(logprobs)


def rlpr_reward(with_reasoning: float, without: float, *, well_formed: bool, format_weight: float = 0.1) -> float:
    """Return (1 - w) · max(0, B - A) + w · format."""
    return (1 - format_weight) * max(0.0, with_reasoning - without) + format_weight * well_formed


def is_well_formed(text: str, tags: Sequence[str]) -> bool:
    """Return whether every tag stands in the text once, and they stand in order."""
    places = [text.find(tag) for tag in tags]
    return all(text.count(tag) == 1 for tag in tags) and places == sorted(places)


def splice(
    context: tuple[int, ...], sampled: tuple[int, ...], answer: str, renderer: Renderer, opening: str
) -> Spliced:
    """Put the answer behind the last `opening` of what was sampled, with its whitespace, or behind both.

    Args:
        context: [T] tokens before the action.
        sampled: [T] tokens of the action, without a stop token; those before the answer stay as they are.
        answer: text of the reference.
        renderer: gives the tokens of text, and the text of tokens.
        opening: tag before an answer.
    """
    strings = renderer.token_strings(sampled)
    text = "".join(strings)
    position = text.rfind(opening)
    if position < 0:
        glue, num_kept = opening, len(sampled)
    else:
        start = position + len(opening)
        start += len(text[start:]) - len(text[start:].lstrip())
        num_kept, length = 0, 0
        while num_kept < len(strings) and length + len(strings[num_kept]) <= start:
            length += len(strings[num_kept])
            num_kept += 1
        glue = text[length:start]
    return _behind((*context, *sampled[:num_kept]), glue, answer, renderer)


def spliced_prompt(episode: Trajectory, answer: str, renderer: Renderer) -> Spliced:
    """Put the answer straight behind an episode's prompt and a space."""
    row = episode.rows[0]
    prompt = tuple(ids for ids, node in zip(row.token_ids, row.nodes, strict=True) if node == 0)
    return _behind(prompt, " ", answer, renderer)


def _behind(prefix: tuple[int, ...], glue: str, answer: str, renderer: Renderer) -> Spliced:
    """Put the answer behind a prefix; a token that holds both glue and answer counts as the answer's."""
    encoded = renderer.encode_action(Action(glue + answer))
    stops = set(renderer.stop_token_ids)
    while encoded and encoded[-1] in stops:
        encoded = encoded[:-1]
    passed, length = 0, 0
    for string in renderer.token_strings(encoded):
        if length + len(string) > len(glue):
            break
        length += len(string)
        passed += 1
    return Spliced((*prefix, *encoded), len(prefix) + passed)


def last_action(episode: Trajectory) -> str:
    """Return the text of the last action that the env answered; empty where there is none."""
    texts = [str(turn.outcome.action) for turn in episode.turns if turn.outcome is not None]
    return texts[-1] if texts else ""


def sampled_action(episode: Trajectory, renderer: Renderer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens [T] before an episode's last action, and those sampled of it, without stop tokens."""
    row, turn = episode.rows[-1], len(episode.turns) - 1
    places = [place for place in range(len(row)) if row.turns[place] == turn and row.loss_mask[place]]
    sampled = tuple(row.token_ids[place] for place in places)
    stops = set(renderer.stop_token_ids)
    while sampled and sampled[-1] in stops:
        sampled = sampled[:-1]
    return row.token_ids[: places[0] if places else len(row)], sampled


async def _mean_probabilities(model: LogprobModel, items: Sequence[Spliced]) -> list[float]:
    logprobs = await model.compute_logprobs([item.token_ids for item in items])
    return [mean_probability(row[item.first :]) for row, item in zip(logprobs, items, strict=True)]
