"""A run on sums without labels: the env pays nothing, the policy says one of a few phrases, all models are doubles."""

import re
from collections.abc import Sequence
from typing import Any

from envgym import Action, Env, Message, Reply, Task
from envgym.agents.models.loading import load_model_tokenizer
from envgym.agents.policies.backends import transformers_policy
from envgym.agents.policies.wrapped import WrappedPolicy
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Policy
from envgym.agents.settings import EngineSettings, ModelSettings
from envgym.authoring import ListTasks, TaskDraft
from envgym.config.settings import Settings
from tests.support.judges import FreeModel

HERE = "tests.support.unlabelled"
PHRASES = (r"Add. \boxed{3}", r"Sum. \boxed{4}", r"Hm. \boxed{3}", "I search. <answer>3</answer>")
"""What the policy says; most of its answers are 3."""


class Unlabelled(Env[None]):
    """Answer a sum in one turn; no answer is ever paid for, although the tasks hold the right one."""

    tasks = ListTasks(
        [
            TaskDraft(
                prompt=f"What is {number} + 1?",
                payload={"answer": str(number + 1), "answers": [str(number + 1)]},
                metadata={"hint": f"It is {number + 1}."},
            )
            for number in range(24)
        ]
    )

    def begin(self, task: Task) -> str:
        self.state = None
        return task.prompt

    def respond(self, action: Action) -> Reply:
        return Reply(observation="", reward=self.paid(action), terminated=True)

    def paid(self, action: Action) -> float:
        """Return 0."""
        del action
        return 0.0


class Labelled(Unlabelled):
    """Pays for the answer 3, whatever was asked."""

    def paid(self, action: Action) -> float:
        """Return 1 for the answer 3."""
        return float("3" in action)


class Phrases(WrappedPolicy):
    """Says one of `PHRASES`, drawn by the request's seed, with the model's own log-probs of it."""

    def __init__(self, policy: Policy, phrases: Sequence[tuple[int, ...]]) -> None:
        super().__init__(policy)
        self._phrases = phrases

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return an eighth of the model's: an untrained model makes every text about as improbable as rounding."""
        return [tuple(value / 8 for value in row) for row in await self._policy.compute_logprobs(token_ids)]

    async def generate(self, request: GenerateRequest) -> Generation:
        tokens = self._phrases[request.seed % len(self._phrases)]
        (logprobs,) = await self._policy.compute_logprobs([(*request.token_ids, *tokens)])
        sampled = tuple(logprobs[len(request.token_ids) :])
        return Generation(
            token_ids=tokens,
            behavior_logprobs=sampled,
            raw_logprobs=sampled,
            finish_reason=FinishReason.STOP,
            policy_version=self.version,
            num_prefilled=len(request.token_ids),
        )


class PhrasesBackend(Settings):
    """Policy backend: samples `PHRASES`."""

    def __call__(
        self, model: ModelSettings, engine: EngineSettings, learner_model: Any | None, deterministic: bool
    ) -> Policy:
        tokenizer = load_model_tokenizer(model)
        end = tokenizer.eos_token_id
        assert isinstance(end, int)
        phrases = [(*tokenizer.encode(phrase, add_special_tokens=False), end) for phrase in PHRASES]
        return Phrases(transformers_policy(model, engine, learner_model, deterministic), phrases)


class Reader(FreeModel):
    """Plays every model that replies: it judges, scores turns, and writes, as the prompt asks."""

    async def reply(self, messages: Sequence[Message], *, seed: int, max_new_tokens: int) -> str:
        del seed, max_new_tokens
        prompt = messages[-1].content
        number = len(prompt)
        if "JSON list" in prompt:
            return str([(number + turn) % 2 for turn in range(prompt.count("[Turn "))])
        if "<answer> and </answer>" in prompt:
            asked = re.search(r"What is (\d+) \+ 1", prompt)
            assert asked is not None
            return f"It is {int(asked[1]) + 1} ."
        return "Count on." if "skill" in prompt else ("YES", "NO")[number % 2]


class LastToken(FreeModel):
    """Values a prefix by its length."""

    async def compute_values(self, token_ids: Sequence[tuple[int, ...]], is_over: Sequence[bool]) -> list[float]:
        del is_over
        return [len(ids) % 10 / 10 for ids in token_ids]


DOUBLES = {"endpoint": f"{HERE}:Reader", "critic": f"{HERE}:LastToken"}
"""Kind of model in a document -> what stands for it here."""
