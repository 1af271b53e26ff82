"""VeriFree: the probability of the whole reference answer after the policy's own reasoning, in place of a verifier."""

import math
from collections.abc import Sequence

from envgym.config.settings import Settings
from envgym.core.task_needs import TaskNeed
from envgym.core.trajectory import Group
from envgym.core.tree import Annotation
from envgym.trainer.methods.annotators.base import AnnotateContext, LogprobModel, annotate_trees
from envgym.trainer.methods.annotators.judge import reference_answer, reference_need
from envgym.trainer.methods.annotators.rlpr import Spliced, sampled_action, splice
from envgym.trainer.methods.scores import POLICY_MODEL


class VeriFree(Settings):
    """Write R = exp(Σ_t log p_t) on every valid episode, in [0, 1]. Source: 2505.21493, and the authors' code.

    p_t are the probabilities of the tokens of the reference answer and the closing tag, spliced in place of the last
    answer between the tags, after the sampled tokens before it, id for id. R is 0 where no answer is opened.

    Deviations: probabilities are those at temperature 1; a token that holds the end of the opening tag and the answer
    counts as the answer's. The paper's second gradient, R · ∇ log p of the reference, and its leaving out of the
    sampled answer are not built: with `shaping` and `credit`, R pays for all that was sampled.
    """

    name: str = "verifree"
    """Of the annotations."""
    model: str = POLICY_MODEL
    """Which of the run's `models` gives the probabilities: the policy as it samples now, or one with its tokenizer."""
    reference: str = "answer"
    """Key of the reference answer in a task's payload."""
    answer_tags: tuple[str, str] = ("<answer>", "</answer>")
    r"""Between which the answer stands, such as `\boxed{` and `}`; where the first is empty, the reference follows all
    that was sampled."""

    def required_models(self) -> dict[str, type]:
        return {self.model: LogprobModel}

    def task_needs(self) -> Sequence[TaskNeed]:
        return [reference_need(self.reference)]

    async def __call__(self, group: Group, context: AnnotateContext) -> Group:
        """Return the group with the probabilities. Raises: InfrastructureError: the model did not give them."""
        answer = reference_answer(context.task, self.reference)
        model, renderer = context.models[self.model], context.agent.renderer
        assert isinstance(model, LogprobModel), "checked before the run began"
        opening, closing = self.answer_tags
        spliced: dict[tuple[str, int], Spliced] = {}
        for episode in group.valid:
            before, sampled = sampled_action(episode, renderer)
            if opening in "".join(renderer.token_strings(sampled)):
                spliced[episode.tree.id, episode.leaf] = splice(before, sampled, answer + closing, renderer, opening)
        rows = await model.compute_logprobs([item.token_ids for item in spliced.values()]) if spliced else []
        values = {
            place: joint_probability(row[item.first :])
            for (place, item), row in zip(spliced.items(), rows, strict=True)
        }
        annotations: dict[str, list[Annotation]] = {tree.id: [] for tree in group.trees}
        for episode in group.valid:
            place = (episode.tree.id, episode.leaf)
            value, verdict = values.get(place, 0.0), "" if place in values else f"no {opening} was written"
            annotations[place[0]].append(
                Annotation(name=self.name, level="episode", node=episode.leaf, value=value, verdict=verdict)
            )
        return annotate_trees(group, annotations)


def joint_probability(logprobs: Sequence[float]) -> float:
    """Return the product of exp(logprob), in [0, 1]; the logprobs are nats."""
    return math.exp(math.fsum(logprobs))
