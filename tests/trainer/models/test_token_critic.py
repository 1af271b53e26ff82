"""A critic with weights of its own: it learns as a shared one would alone, leaves the policy be, and is kept."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from envgym.agents.models.loading import load
from envgym.agents.models.tiny import TinySettings
from envgym.errors import EnvgymError, InvalidInput
from envgym.runs.directory import RunDirectory
from envgym.trainer.batch.rows import TrainRow, scored_row
from envgym.trainer.build import build_run_context
from envgym.trainer.learner.checkpoint import require_checkpoint
from envgym.trainer.learner.critic import Critic
from envgym.trainer.models.token_critic import TokenCritic
from envgym.trainer.phases import dry_runs
from envgym.trainer.run import RunContext, credit_groups, prepare_models, train_step
from envgym.trainer.train import train
from envgym.trainer.workflows.critic_value import critic as critic_of_run
from tests.support.tiny_runs import TINY, sampled_groups, step_metrics, tiny_settings

GAE = {"name": "gae_token", "decay": 1.0}
OPTIM = {"lr": 0.001, "minibatches": 2, "epochs": 2}
OWN: dict[str, Any] = {
    "credit": GAE,
    "critic": {"model": "value", "clip": 0.5},
    "models": {"value": {"kind": {"name": "token_critic", "lr": 0.001}}},
    "optim": OPTIM,
}


def own(**kind: Any) -> dict[str, Any]:
    return {**OWN, "models": {"value": {"kind": {"name": "token_critic", "lr": 0.001, **kind}}}}


def begun(directory: Path, **sections: Any) -> tuple[RunContext, list[TrainRow]]:
    settings = tiny_settings(directory, **sections)
    context = build_run_context(settings)
    prepare_models(context, directory)
    return context, credit_groups(context, sampled_groups(context, settings)).rows


def own_critic(context: RunContext) -> TokenCritic:
    assert context.critic is not None
    return context.critic


def head_of(context: RunContext) -> Critic:
    critic = context.learner.critic if context.critic is None else context.critic.learner.critic
    assert critic is not None
    return critic


def weights(model: torch.nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(ones: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


def kept(run: Path, *names: str) -> dict[str, Tensor]:
    return load_file(require_checkpoint(run).joinpath(*names) / "model" / "model.safetensors")


def test_first_loss_is_half_the_mean_square_of_the_returns(tmp_path: Path) -> None:
    context, rows = begun(tmp_path, **OWN)
    targets = [target for row in rows for _, target in row.supervised]
    assert len(targets) == sum(map(sum, (row.loss_mask for row in rows)))  # one before every sampled token
    assert {target.value for target in targets} == {0.0}
    # with a discount and a decay of 1 they are the returns: 1/2 for each even text from here on
    assert {target.target for target in targets} <= {0.0, 0.5, 1.0}
    mean = sum(target.target**2 for target in targets) / len(targets)
    single = context.learner.optim.model_copy(update={"epochs": 1, "minibatches": 1})
    learned = own_critic(context).learn(rows, single, step=0)
    assert learned["loss/value"] == pytest.approx(mean / 2)
    assert learned["critic/target"] == pytest.approx(sum(target.target for target in targets) / len(targets))
    assert learned["critic/grad_norm"] == 0.0  # a head of 0 says nothing to the body yet
    assert own_critic(context).learn(rows, single, step=1)["critic/grad_norm"] > 0


def test_equal_weights_give_the_values_of_a_head_on_the_policy(tmp_path: Path) -> None:
    shared, rows = begun(tmp_path / "a", credit=GAE, optim=OPTIM)
    apart, same_rows = begun(tmp_path / "b", **OWN)
    assert [row.token_ids for row in rows] == [row.token_ids for row in same_rows]
    for context in (shared, apart):
        with torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            head_of(context).head.weight_D.copy_(torch.randn(TINY["hidden_size"], generator=generator))
    asked = {"policy": ["values"]}
    values = shared.compute_scores(rows, asked)  # type: ignore[arg-type]  # a literal
    assert values == apart.compute_scores(rows, asked)  # type: ignore[arg-type]  # as above
    assert max(map(abs, values["policy", "values"][0])) > 0.01


def test_alone_it_learns_what_a_shared_body_would_learn_from_the_value_loss_alone(tmp_path: Path) -> None:
    """Reduction: without a policy's loss, body and head move together, on the policy or apart, bit by bit."""
    shared, rows = begun(
        tmp_path / "a",
        credit=GAE,
        critic={"detach": False, "clip": 0.5},
        objective={"policy_coef": 0.0},
        optim=OPTIM,
    )
    apart, _ = begun(tmp_path / "b", **OWN)
    first = weights(shared.model)
    for step in range(3):
        ours, theirs = train_step(apart, rows, step=step), train_step(shared, rows, step=step)
        assert ours["loss/value"] == theirs["loss/value"]
    assert same(weights(own_critic(apart).learner.model), weights(shared.model))
    assert same(weights(head_of(apart).head), weights(head_of(shared).head))
    assert not same(first, weights(shared.model))


@pytest.mark.parametrize(
    "sections, rates",
    [(own(), "models.value.kind.lr or critic.lr"), ({"credit": "gae_token"}, "optim.lr or critic.lr")],
)
def test_overflow_names_learning_rates_of_body_and_head(sections: dict[str, Any], rates: str, tmp_path: Path) -> None:
    context, rows = begun(tmp_path, **sections)
    with torch.no_grad():
        head_of(context).head.weight_D.fill_(torch.nan)
    with pytest.raises(InvalidInput, match=rf"loss must be finite, got nan \(learner\); lower {rates}, or look at"):
        train_step(context, rows, step=0)


def test_its_own_epochs_are_as_many_passes_of_the_policys(tmp_path: Path) -> None:
    """Reduction: three passes of its own beside one of the policy's are three passes like the policy's."""
    once, rows = begun(tmp_path / "a", **{**own(epochs=3), "optim": {**OPTIM, "epochs": 1}})
    thrice, _ = begun(tmp_path / "b", **{**OWN, "optim": {**OPTIM, "epochs": 3}})
    before = weights(own_critic(once).learner.model)
    for context in (once, thrice):
        own_critic(context).learn(rows, context.learner.optim, step=0)
    assert same(weights(own_critic(once).learner.model), weights(own_critic(thrice).learner.model))
    assert same(weights(head_of(once).head), weights(head_of(thrice).head))
    assert not same(before, weights(own_critic(once).learner.model))


def test_policy_learns_as_if_there_were_no_critic(tmp_path: Path) -> None:
    apart, rows = begun(tmp_path / "a", **OWN)
    alone, _ = begun(tmp_path / "b", optim=OPTIM)
    body = weights(own_critic(apart).learner.model)
    for context in (apart, alone):
        train_step(context, rows, step=0)
    assert same(weights(apart.model), weights(alone.model))
    assert not same(body, weights(own_critic(apart).learner.model))
    assert not same(weights(apart.model), weights(own_critic(apart).learner.model))


def test_rate_rises_falls_and_is_that_of_head_and_body(tmp_path: Path) -> None:
    context, rows = begun(tmp_path, **own(warmup_steps=1, decay="linear"), run={"steps": 4})
    rates = [own_critic(context).learn(rows, context.learner.optim, step=step)["critic/lr"] for step in range(4)]
    assert rates == pytest.approx([0.0005, 0.001, 0.001 * 2 / 3, 0.001 / 3])  # half of it, all, and down to 0
    assert head_of(context).optimizer.param_groups[0]["lr"] == pytest.approx(0.05 / 3)


def test_run_trains_both_and_resumes_bit_by_bit(tmp_path: Path) -> None:
    chosen = tiny_settings(tmp_path / "run", **OWN, run={"steps": 3})
    train(chosen)
    before = step_metrics(tmp_path / "run")
    assert before[0]["critic/value"] == 0.0
    assert before[1]["critic/value"] > 0.05  # half of the texts are even: it has learned that they pay
    assert before[2]["loss/value"] < before[0]["loss/value"]
    part = RunDirectory.open(tmp_path / "run").checkpoints / "step-000003" / "parts" / "model_value"
    files = ("model/model.safetensors", "optimizer.pt", "critic.pt")
    states = [(part / name).read_bytes() for name in files]
    assert not all(value.equal(kept(tmp_path / "run")[name]) for name, value in load_file(part / files[0]).items())
    shutil.rmtree(part.parents[1])
    shutil.rmtree(part.parents[2] / "step-000002")
    train(chosen, resume=True)
    assert step_metrics(tmp_path / "run") == before
    assert [(part / name).read_bytes() for name in files] == states


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of a critic on the policy, and one of a critic apart; a step each."""
    folder = tmp_path_factory.mktemp("runs")
    train(tiny_settings(folder / "shared", credit=GAE, run={"steps": 1}))
    train(tiny_settings(folder / "apart", **OWN, run={"steps": 1}))
    return folder


def test_it_begins_as_what_another_run_has_trained(trained: Path, tmp_path: Path) -> None:
    for beginning, run, part in (
        ({"run": str(trained / "shared")}, trained / "shared", ""),
        ({"run": str(trained / "apart"), "model": "value"}, trained / "apart", "parts/model_value"),
    ):
        context, rows = begun(tmp_path / run.name, **own(**beginning))
        state = own_critic(context).learner.model.state_dict()
        assert all(value.equal(state[name]) for name, value in kept(run, part).items())
        head = torch.load(require_checkpoint(run) / part / "critic.pt", weights_only=True)["head"]
        assert head_of(context).head.weight_D.equal(head["weight_D"])
        assert not head_of(context).optimizer.state  # which begins anew
        assert any(target.value for row in rows for _, target in row.supervised)


def test_it_may_be_of_another_size_than_the_policy(tmp_path: Path) -> None:
    large = load("tiny", tiny=TinySettings(**{**TINY, "hidden_size": 128}))
    large.model.save_pretrained(tmp_path / "large")
    large.tokenizer.save_pretrained(tmp_path / "large")
    context, rows = begun(tmp_path, **own(path=str(tmp_path / "large")))
    assert train_step(context, rows, step=0)["loss/value"] > 0
    assert head_of(context).head.weight_D.shape == (128,)


def test_policy_with_adapters_has_a_critic_from_a_directory_and_resumes(trained: Path, tmp_path: Path) -> None:
    chosen = tiny_settings(tmp_path, **own(run=str(trained / "shared")), model={"lora": {"rank": 2}})
    train(chosen)
    before = step_metrics(tmp_path)
    shutil.rmtree(RunDirectory.open(tmp_path).checkpoints / "step-000002")
    train(chosen, resume=True)
    assert step_metrics(tmp_path) == before


def test_searches_read_the_critic_of_such_a_run(trained: Path, tmp_path: Path) -> None:
    context, _ = begun(tmp_path, **own(run=str(trained / "apart"), model="value"))
    ids, learner = tuple(context.tokenizer("Say an even one.")["input_ids"]), own_critic(context).learner
    rows = [scored_row((*ids, 0), first=len(ids))]
    values_NT = learner.compute_values(rows, learner.micro_batches(rows, [0]))
    (found,) = critic_of_run(str(trained / "apart")).compute_values([ids], [False])
    assert found == values_NT[0, -1].item() != 0.0


def test_dry_run_counts_its_weights_and_passes(tmp_path: Path) -> None:
    apart = dry_runs([tiny_settings(tmp_path, **{**OWN, "critic": {"model": "value"}, "optim": {"epochs": 2}})])[0].cost
    shared = dry_runs([tiny_settings(tmp_path, credit=GAE, optim={"epochs": 2})])[0].cost
    assert apart is not None
    assert shared is not None
    assert apart.state.total == 2 * shared.state.total
    assert apart.passes == pytest.approx(shared.passes + 2)  # the pass of the values is one either way
    longer = dry_runs(
        [tiny_settings(tmp_path, **{**own(epochs=5), "critic": {"model": "value"}, "optim": {"epochs": 2}})]
    )[0]
    assert longer.cost is not None
    assert longer.cost.passes == pytest.approx(shared.passes + 5)


@pytest.mark.parametrize(
    "sections, words",
    [
        ({**OWN, "models": {}}, "model must be a known name, got 'value'"),
        ({**OWN, "models": {"valu": OWN["models"]["value"]}}, "did you mean valu"),
        (
            {**OWN, "models": {"value": {"kind": "snapshot"}}},
            "model value must be a critic with weights of its own, got",
        ),
        ({**OWN, "critic": None}, "critic value must be read by a credit, got critic.model=None"),
        ({**OWN, "credit": "grpo"}, "critic must be used with a credit that uses a critic, got credit grpo"),
        ({**OWN, "credit": "grpo", "critic": None}, "critic value must be read by a credit"),
        (
            own(path="tiny", run="elsewhere"),
            "initial weights of a critic must come from one place, got path=tiny, run=elsewhere",
        ),
        (own(epochs=0), "epochs must be at least 1, got 0"),
        (own(model="value"), "initial weights of a critic must come from one place"),
        (own(run="elsewhere"), "run must be a directory"),
        (own(path="elsewhere"), "model must be a known name, got 'elsewhere'"),
        ({**own(), "model": {"lora": {"rank": 2}}}, "copy of the policy must hold all weights, got adapters"),
    ],
)
def test_what_cannot_be_its_beginning_is_refused(sections: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(EnvgymError, match=words):
        build_run_context(tiny_settings(tmp_path, **sections))


def test_other_tokenizers_short_models_and_unknown_parts_are_refused(trained: Path, tmp_path: Path) -> None:
    short = load("tiny", tiny=TinySettings(**{**TINY, "max_positions": 100}))
    short.model.save_pretrained(tmp_path / "short")
    short.tokenizer.save_pretrained(tmp_path / "short")
    shutil.copytree(tmp_path / "short", tmp_path / "foreign")
    short.tokenizer.add_tokens(["word"])
    short.tokenizer.save_pretrained(tmp_path / "foreign")
    table = (
        (own(path=str(tmp_path / "short")), "critic must have at least the 256 positions of agent.max_context_tokens"),
        (own(path=str(tmp_path / "foreign")), "tokenizer must be that of the policy"),
        (own(run=str(trained / "apart"), model="valeu"), "did you mean value"),
        (own(run=str(trained / "shared"), model="value"), "model"),
    )
    for sections, words in table:
        with pytest.raises(EnvgymError, match=words) as caught:
            build_run_context(tiny_settings(tmp_path, **sections))
        assert "\n" not in str(caught.value)
