"""A critic as a `ValueFn`: which token it reads, that company changes nothing, and what is refused."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from envgym.agents.models.tiny import tiny_tokenizer
from envgym.agents.search import BestOf, Mcts
from envgym.agents.search.scorers import VALUE, SearchObservation, ValueScorer
from envgym.config.plugins import Choice
from envgym.core.json_types import JsonObject
from envgym.errors import EnvgymError, InvalidInput
from envgym.trainer.learner.causal_lm import hidden_states
from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.settings import CriticSettings, OptimSettings
from envgym.trainer.train import train
from envgym.trainer.workflows.critic_value import CriticValue, critic
from tests.trainer.learner.packing.forest import CPU, build
from tests.trainer.test_critic_run import settings

MODEL = build()
"""Exact, 16 wide."""


def seen(*token_ids: int, is_over: bool = False) -> SearchObservation:
    return SearchObservation(messages=(), token_ids=token_ids, num_turns=1, is_over=is_over, logprob=0.0)


PLACES = [seen(5, 6, 7), seen(5, 6, 7, 8, 9), seen(5, 6, 7, 8, 9, is_over=True), seen(3), seen(5, 6, 7, 8, 9)]


def made(*, packing: bool = True, max_positions: int | None = None) -> CriticValue:
    optim = OptimSettings(packing=packing)
    head = Critic(MODEL, CriticSettings(), optim, device=CPU)
    with torch.no_grad():
        head.head.weight_D.copy_(torch.randn(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
        head.head.bias.fill_(0.3)
    return CriticValue(ForwardPass(MODEL, optim, device=CPU), head, tiny_tokenizer(), max_positions=max_positions)


def asked(value: CriticValue, calls: Sequence[Sequence[SearchObservation]]) -> list[float]:
    async def work() -> list[float]:
        answers = await asyncio.gather(*(value(call) for call in calls))
        return [item for answer in answers for item in answer]

    return asyncio.run(work())


def by_hand(*token_ids: int) -> float:
    """Return w · ĥ / 16 + 0.3 of the last of some tokens."""
    weight_D = torch.randn(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        hidden_D = hidden_states(MODEL, input_ids_BT=torch.tensor([token_ids]))[0, -1]
    normal_D = hidden_D / (hidden_D.square().mean() + torch.finfo(torch.float64).eps).sqrt()
    return float(weight_D @ normal_D / 16 + 0.3)


def test_value_of_a_place_is_said_behind_its_context_and_that_of_an_end_before_its_last_token() -> None:
    # the end 5 6 7 8 9 is read behind 5 6 7 8: what its last token (the stop token) is does not matter
    expected = [by_hand(5, 6, 7), by_hand(5, 6, 7, 8, 9), by_hand(5, 6, 7, 8), by_hand(3), by_hand(5, 6, 7, 8, 9)]
    assert asked(made(), [PLACES]) == pytest.approx(expected, abs=1e-12)
    other = asked(made(), [[seen(5, 6, 7, 8, 2, is_over=True)]])
    assert other == pytest.approx([by_hand(5, 6, 7, 8)], abs=1e-12)


@pytest.mark.parametrize("packing", [True, False])
def test_values_do_not_depend_on_who_asks_beside(packing: bool) -> None:
    together, alone = made(packing=packing), made(packing=packing)
    one_by_one = [number for place in PLACES for number in asked(alone, [[place]])]
    assert asked(together, [PLACES[:2], [], PLACES[2:4], PLACES[4:]]) == pytest.approx(one_by_one, abs=1e-12)
    assert asked(together, [[]]) == []
    if packing:  # shared tokens are read once: 5 6 7 8 9 and 3, each place with a token behind it
        assert together.tokens_read < alone.tokens_read


def test_places_longer_than_the_model_reads_are_refused_and_others_are_still_answered() -> None:
    value = made(max_positions=5)
    with pytest.raises(InvalidInput, match="conversation must hold at most 5 tokens for this critic, got 6"):
        asked(value, [[seen(1, 2, 3, 4, 5)]])
    assert asked(value, [PLACES[:1]]) == pytest.approx([by_hand(5, 6, 7)], abs=1e-12)


def test_another_tokenizer_is_refused() -> None:
    value, other = made(), tiny_tokenizer()
    value.check_tokenizer(tiny_tokenizer())
    other.add_tokens(["word"])
    with pytest.raises(InvalidInput, match="the critic's tokenizer must be that of the policy, got 367 of 368 tokens"):
        value.check_tokenizer(other)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name in ("gae_token", "gae_turn", "grpo"):
        credit: JsonObject = {"name": name}
        run: JsonObject = {"name": name, "directory": str(folder / name), "steps": 1, "trackers": []}
        train(settings(folder / name, credit=credit, run=run))
    return folder


def critic_of(run: Path) -> Choice:
    return Choice.model_validate({"name": "critic", "run": str(run)})


def test_critic_of_a_run_leads_and_chooses(runs: Path) -> None:
    value = critic_of(runs / "gae_token")
    search = Mcts(value=value)
    assert not search.selection.is_oracle
    assert search.value_fn is critic(str(runs / "gae_token")), "a checkpoint is read once"
    chooser = BestOf(select=Choice(name="value"), value=value)
    assert isinstance(chooser.answer_scorer, ValueScorer)
    assert chooser.answer_scorer.value_fn is search.value_fn
    search.check_tokenizer(tiny_tokenizer())
    other = tiny_tokenizer()
    other.add_tokens(["word"])
    with pytest.raises(InvalidInput, match="tokenizer must be that of the policy"):
        chooser.check_tokenizer(other)
    estimate = asyncio.run(estimate_value(search, seen(*tiny_tokenizer()("Compute 1 + 1.")["input_ids"])))
    assert estimate < 0, "episodes of this run were paid less than nothing"


async def estimate_value(search: Mcts, observation: SearchObservation) -> float:
    assert search.value_fn is not None
    (estimate,) = await search.value_fn([observation])
    return estimate


def test_what_holds_no_critic_for_finished_episodes_is_refused(runs: Path, tmp_path: Path) -> None:
    def refusal(run: Path) -> str:
        with pytest.raises(EnvgymError) as caught:
            VALUE.build(critic_of(run))
        return str(caught.value)

    assert "run must have trained a critic, got credit grpo" in refusal(runs / "grpo")
    assert "critic must have learned at the ends of turns, too, got credit gae_turn" in refusal(runs / "gae_turn")
    assert "run must be a directory" in refusal(tmp_path / "nothing")
    copy = tmp_path / "copy"
    shutil.copytree(runs / "gae_token", copy)
    (last,) = (copy / "checkpoints").glob("step-000001")
    head = torch.load(last / "critic.pt", weights_only=True)
    head["head"]["weight_D"] = torch.zeros(32)
    torch.save(head, last / "critic.pt")
    assert "critic must fit the model beside it, got size mismatch" in refusal(copy)
    (last / "critic.pt").unlink()
    assert "checkpoint must hold critic.pt, got none" in refusal(copy)
    shutil.rmtree(copy / "checkpoints")
    assert "run must hold a checkpoint, got none" in refusal(copy)
