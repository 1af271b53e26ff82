"""A party that is a model in this process: its probabilities are the model's own, its replies depend on seeds alone."""

import asyncio
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from envgym.agents.loop.agent import AgentSettings, make_agent
from envgym.agents.models.loading import load
from envgym.agents.policies.parties import LocalParty
from envgym.config.plugins import Choice
from envgym.core.messages import Message, Role
from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput, PartyFailure
from envgym.party import PARTY, LanguageModel
from envgym.verifiers import GenerativeVerifier, LlmJudge

TASK = Task(id="train/0", prompt="Capital of Peru?", payload={"answer": "Lima"}, split=Split.TRAIN)
HELLO = [Message(role=Role.USER, content="Hello?")]


def party(**settings: Any) -> LocalParty:
    return LocalParty(**{"path": "tiny", "max_new_tokens": 8, **settings})


def probability_by_hand(messages: list[Message], texts: list[str]) -> float:
    """Return the sum over texts of the product of their tokens' probabilities, one forward pass for each."""
    loaded = load("tiny")
    segments = make_agent(AgentSettings(), loaded.tokenizer).start(messages, ()).segments
    context = [token for segment in segments for token in segment.token_ids]
    total = 0.0
    for text in texts:
        token_ids = loaded.tokenizer.encode(text, add_special_tokens=False)
        with torch.no_grad():
            logits_TV = loaded.model(torch.tensor([context + token_ids])).logits[0]
        places = range(len(context), len(context) + len(token_ids))
        probabilities_TV = logits_TV.double().softmax(-1)
        total += math.prod(
            float(probabilities_TV[place - 1, token]) for place, token in zip(places, token_ids, strict=True)
        )
    return total


def test_probability_of_a_word_is_the_product_over_its_tokens_summed_over_its_spellings() -> None:
    asked = party()
    assert isinstance(asked, LanguageModel)
    found = asked.compute_probabilities(HELLO, ["Yes", "No"])
    for word, value in zip(("Yes", "No"), found, strict=True):
        spellings = [f"{space}{form}" for space in ("", " ") for form in (word, word.lower(), word.upper())]
        assert value == pytest.approx(probability_by_hand(HELLO, spellings), rel=1e-4)
    assert 0 < sum(found) < 1


def test_generative_verifier_scores_by_the_models_own_probability() -> None:
    verifier = GenerativeVerifier(judge=party(), min_mass=1e-12)
    asked = [Message(role=Role.USER, content=f"{verifier.prompt('Lima', TASK)}\n{verifier.question}")]
    assert verifier("Lima", TASK).score == pytest.approx(party().compute_probabilities(asked, ["Yes"])[0])
    with pytest.raises(PartyFailure, match=r"must give Yes and No together from 0\.5 to 1, got "):
        GenerativeVerifier(judge=party(), num_rationales=2)("Lima", TASK)


def test_llm_judge_refuses_the_words_of_a_model_that_knows_nothing() -> None:
    with pytest.raises(PartyFailure, match="reply of the judge must end with its only line"):
        LlmJudge(judge=party())("Lima", TASK)


def test_replies_depend_on_seed_and_conversation_alone() -> None:
    assert party().reply(HELLO) == pickle.loads(pickle.dumps(party())).reply(HELLO)
    assert party(temperature=1.0).reply(HELLO) == party(temperature=1.0).reply(HELLO)
    assert party(temperature=1.0).reply(HELLO) != party(temperature=1.0, seed=1).reply(HELLO)
    assert party().sample(HELLO, seed=1) == party().sample(HELLO, seed=1) != party().sample(HELLO, seed=2)
    with ThreadPoolExecutor(4) as pool:
        samples = list(pool.map(lambda number: party().sample(HELLO, seed=number % 2), range(8)))
    assert samples == samples[:2] * 4


def test_model_answers_also_where_an_event_loop_runs() -> None:
    async def work() -> Message:
        return party().reply(HELLO)

    assert asyncio.run(work()) == party().reply(HELLO)


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"path": "smolm2"}, "smollm2"),
        ({"sampling_temperature": 0}, "sampling_temperature must be above 0, got 0"),
        ({"temperature": -1}, "temperature must be in range, got -1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be in range, got 0"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_unusable_settings_are_refused(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        PARTY.build(Choice.model_validate({"name": "local", "path": "tiny", **settings}))
