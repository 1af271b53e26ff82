"""Scores: equal to a plain forward pass, under the sampled context and under another; and what is refused."""

import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.core.trajectory import Group, Row
from envgym.errors import InvalidInput, SettingsError, UnknownName
from envgym.trainer.batch.build import build_batch
from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.build import model_context
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.packing.support import can_pack
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.methods.credit.outcome import Grpo
from envgym.trainer.methods.scores import Quantity, ScoreRequest, required_scores
from envgym.trainer.models.base import ModelContext
from envgym.trainer.models.frozen import FrozenModel
from envgym.trainer.models.reference import reference_of
from envgym.trainer.models.scores import ScoringModels, check_score_models, check_score_names
from envgym.trainer.settings import train_settings
from tests.support.credit_trees import group_of
from tests.support.example_trees import context_rewrite
from tests.trainer.learner.packing.forest import CPU, SIZES, build, group, kept_packs

MODEL = build()
OTHER = (7, 3, 11, 2, 5)
"""Another first context, of another length."""


def models(*, packing: bool = True) -> ScoringModels:
    learner = Learner(MODEL, optim=OptimSettings(packing=packing), num_steps=1, device=CPU)
    return ScoringModels(learner=learner, models={}, temperature=0.7)


def trees(seed: int = 0) -> Group:
    """Return random trees that keep the context `other` beside their own."""
    grown = group(random.Random(seed))
    return replace(grown, trees=tuple(replace(tree, prompts={"other": OTHER}) for tree in grown.trees))


def scored(grown: Group, *requests: ScoreRequest, packing: bool = True) -> list[TrainRow]:
    return build_batch([grown], Grpo(), once=False, scores=requests, compute=models(packing=packing)).rows


def dense(token_ids: tuple[int, ...], model: nn.Module = MODEL) -> tuple[Tensor, Tensor]:
    """Return log-prob and entropy of every token but the first, at temperature 0.7, from whole logits."""
    with torch.no_grad():
        logp_TV = (model(input_ids=torch.tensor([token_ids])).logits[0] / 0.7).log_softmax(-1)[:-1]
    return logp_TV.gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0], -(logp_TV.exp() * logp_TV).sum(-1)


def opened(module: nn.Module, parts: ModelContext) -> FrozenModel:
    model = FrozenModel(parts)
    model.open = lambda: nullcontext(module)
    return model


def of_tree(row: TrainRow) -> Row:
    assert row.id.row is not None
    return row.id.row


@pytest.mark.parametrize("packing", [True, False])
def test_scores_of_the_policy_are_those_of_a_plain_forward_pass(packing: bool) -> None:
    asked = [ScoreRequest(name="mine"), ScoreRequest(name="doubt", quantity="entropies")]
    for row in scored(trees(), *asked, packing=packing):
        logprobs, entropies = dense(row.token_ids)
        for place, trains in enumerate(row.loss_mask):
            expected = (logprobs[place - 1].item(), entropies[place - 1].item()) if trains else (0.0, 0.0)
            assert (row.scores["mine"][place], row.scores["doubt"][place]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("packing", [True, False])
def test_another_prompt_stands_in_place_of_the_first_context(packing: bool) -> None:
    rows = scored(trees(), ScoreRequest(name="mine"), ScoreRequest(name="theirs", prompt="other"), packing=packing)
    for row in rows:
        cut = sum(node == 0 for node in of_tree(row).nodes)
        logprobs, _ = dense((*OTHER, *row.token_ids[cut:]))
        for place, trains in enumerate(row.loss_mask):
            expected = logprobs[len(OTHER) + place - cut - 1].item() if trains else 0.0
            assert row.scores["theirs"][place] == pytest.approx(expected, abs=1e-9)
        assert row.scores["theirs"] != pytest.approx(row.scores["mine"], abs=1e-3)


def test_the_same_prompt_again_changes_nothing() -> None:
    grown = group(random.Random(3))
    own = tuple(token for segment in grown.trees[0].nodes[0].edge.segments for token in segment.token_ids)
    again = replace(grown, trees=tuple(replace(tree, prompts={"own": own}) for tree in grown.trees))
    for row in scored(again, ScoreRequest(name="mine"), ScoreRequest(name="again", prompt="own")):
        assert row.scores["again"] == row.scores["mine"]


def test_tree_without_the_prompt_is_refused_unless_its_own_will_do() -> None:
    with pytest.raises(UnknownName, match=r"prompt of the tree must be a known name, got 'othr' .*did you mean other"):
        scored(trees(), ScoreRequest(name="theirs", prompt="othr"))
    own, mine = ScoreRequest(name="theirs", prompt="othr", without_prompt="own"), ScoreRequest(name="mine")
    assert all(row.scores["theirs"] == row.scores["mine"] for row in scored(trees(), own, mine))


def test_row_of_a_rewritten_context_has_no_first_context_to_replace() -> None:
    rewritten = group_of(replace(context_rewrite(), prompts={"other": OTHER}))
    with pytest.raises(InvalidInput, match=r"row must begin with the first context .* got one after TURNS_DROPPED"):
        build_batch([rewritten], Grpo(), once=False, scores=[ScoreRequest(name="s", prompt="other")], compute=models())


def test_number_that_is_not_finite_is_refused_with_its_place() -> None:
    def broken(rows: Sequence[TrainRow], quantities: object) -> dict[tuple[str, Quantity], list[list[float]]]:
        return {("policy", "logprobs"): [[0.0] * 5 + [float("nan")] * 2 for _ in rows]}

    with pytest.raises(InvalidInput, match=r"score s must be finite, got nan \(tree context_rewrite, leaf 2, token 5"):
        build_batch([group_of(context_rewrite())], Grpo(), once=False, scores=[ScoreRequest(name="s")], compute=broken)


def test_model_that_cannot_compute_packs_scores_rows_by_themselves_and_is_no_reference() -> None:
    """A state space carries its state along: in the policy's packs it would read the branch before."""
    torch.manual_seed(0)
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    mamba = AutoModelForCausalLM.from_config(AutoConfig.for_model("mamba", **sizes, state_size=4)).eval()
    run = train_settings({"envs": [{"id": "math/arithmetic-v0"}]})
    parts = model_context(run, model=MODEL, tokenizer=None, policy=ScriptedPolicy([]), device=CPU)
    teacher = opened(mamba, parts)
    with (
        pytest.warns(UserWarning, match="MambaForCausalLM must let shared prefixes be computed once"),
        pytest.raises(SettingsError, match=r"model must compute packs as the policy does, got MambaForCausalLM"),
    ):
        reference_of({"reference": teacher}, models().learner.forward)
    compute = replace(models(), models={"teacher": teacher})
    asked = ScoreRequest(name="theirs", model="teacher"), ScoreRequest(name="mine")
    with pytest.warns(UserWarning, match="MambaForCausalLM must let shared prefixes be computed once"):
        rows = build_batch([trees()], Grpo(), once=False, scores=asked, compute=compute).rows
    for row in rows:
        theirs, mine = dense(row.token_ids, mamba)[0], dense(row.token_ids)[0]
        for place, trains in enumerate(row.loss_mask):
            if trains:
                assert row.scores["theirs"][place] == pytest.approx(theirs[place - 1].item(), abs=1e-4)
                assert row.scores["mine"][place] == pytest.approx(mine[place - 1].item(), abs=1e-9)


def test_scores_of_every_model_share_the_packs_of_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs are built once for each first context; each model passes over each of them once, whatever is asked."""
    built = kept_packs(monkeypatch)
    passes = dict.fromkeys(("policy", "reference", "teacher"), 0)
    modules = {name: build() for name in passes}
    for name, module in modules.items():
        assert can_pack(module)
        module.model.register_forward_hook(lambda *_, name=name: passes.update({name: passes[name] + 1}))
    run = train_settings({"envs": [{"id": "math/arithmetic-v0"}], "optim": {"micro_batch_tokens": 64}})
    learner = Learner(modules["policy"], optim=run.optim, num_steps=1, device=CPU)
    parts = model_context(run, model=learner.model, tokenizer=None, policy=ScriptedPolicy([]), device=CPU)
    frozen = {name: opened(modules[name], parts) for name in ("reference", "teacher")}
    compute = ScoringModels(learner=learner, models=frozen, temperature=0.7)

    def counts(*asked: ScoreRequest) -> tuple[int, list[int]]:
        packs_before, before = len(built), dict(passes)
        build_batch([trees()], Grpo(), once=False, scores=asked, compute=compute)
        return len(built) - packs_before, [passes[name] - before[name] for name in passes]

    own = ScoreRequest(name="own")
    num_packs, of_models = counts(own)
    assert num_packs > 1
    assert of_models == [num_packs, 0, 0]
    doubts = [ScoreRequest(name=f"doubt of {name}", model=name, quantity="entropies") for name in passes]
    others = [ScoreRequest(name=name, model=name) for name in frozen]
    assert counts(own, *others, *doubts) == (num_packs, [num_packs] * 3)
    other_packs, _ = counts(ScoreRequest(name="theirs", prompt="other"))
    theirs = ScoreRequest(name="theirs", model="teacher", prompt="other")
    assert counts(own, *others, theirs) == (num_packs + other_packs, [num_packs, num_packs, num_packs + other_packs])


class Asks:
    def __init__(self, *scores: ScoreRequest) -> None:
        self.scores = scores


def test_scores_of_several_plugins_are_computed_once_and_mean_one_thing() -> None:
    one, other = ScoreRequest(name="s", model="teacher"), ScoreRequest(name="t")
    assert required_scores({"credit": Asks(one), "loss": Asks(one, other), "weights.0": object()}) == (one, other)
    with pytest.raises(SettingsError, match="score s must have one meaning"):
        required_scores({"credit": Asks(one), "loss": Asks(replace(one, quantity="entropies"))})
    with pytest.raises(SettingsError, match="values must be the critic's, as sampled, got teacher"):
        ScoreRequest(name="s", model="teacher", quantity="values")


def test_model_that_is_not_there_or_is_served_is_refused() -> None:
    request = ScoreRequest(name="s", model="techer")
    with pytest.raises(UnknownName, match=r"model must be a known name, got 'techer' \(score s\); did you mean"):
        check_score_names([request], ["teacher", "judge"])
    check_score_names([ScoreRequest(name="s", model="reference")], [])
    with pytest.raises(SettingsError, match="model techer must be a frozen model of this process"):
        check_score_models([request], {})
