"""A run's settings: a recipe, what replaces parts of it, and a sentence for everything that cannot be."""

from pathlib import Path
from typing import Any

import pytest

from envgym.config.plugins import Choice
from envgym.errors import InvalidInput
from envgym.trainer.recipes import RECIPE, RecipeEntry
from envgym.trainer.settings import Recipe, TrainSettings, load_train_settings, recipe_settings, train_settings

ENVS = [{"id": "math/arithmetic-v0"}]


def settings(**sections: Any) -> TrainSettings:  # plain data, as YAML gives it
    return train_settings({"envs": ENVS, **sections})


def refusal(**sections: Any) -> str:  # as above
    """Return the message with which a run's settings are refused."""
    with pytest.raises(InvalidInput) as caught:
        settings(**sections)
    return str(caught.value)


@pytest.mark.parametrize("name", RECIPE.table)
def test_run_that_names_a_recipe_makes_its_choices(name: str) -> None:
    found = settings(recipe=name)
    assert {point: getattr(found, point) for point in Recipe.model_fields} == dict(recipe_settings(name))


@pytest.mark.parametrize(
    "loss, name, settings_of_loss",
    [
        ({"clip_high": 0.3}, "ppo_clip", {"clip_low": 0.2, "clip_high": 0.3}),
        ({"name": "ppo_clip", "clip_high": 0.3}, "ppo_clip", {"clip_low": 0.2, "clip_high": 0.3}),
        ({"name": "reinforce"}, "reinforce", {}),  # another method drops those of the recipe's own
    ],
)
def test_settings_of_a_method_are_added_to_those_of_the_recipe(
    loss: dict[str, Any], name: str, settings_of_loss: dict[str, float]
) -> None:
    found = settings(recipe="grpo", loss=loss).loss
    assert (found.name, found.settings) == (name, settings_of_loss)


def test_objective_is_replaced_key_by_key() -> None:
    objective = settings(recipe="dr_grpo", objective={"aggregation": {"max_tokens": 64}}).objective
    assert objective.aggregation == Choice.model_validate({"name": "seq-mean-token-sum-norm", "max_tokens": 64})


def test_recipe_may_choose_more_than_methods_and_a_run_replaces_it() -> None:
    found = settings(recipe="prorl", sampling={"temperature": 0.9}, optim={"lr": 0.1})
    assert settings(recipe="prorl").sampling.temperature == 1.2
    assert (found.sampling.temperature, found.optim.lr) == (0.9, 0.1)
    assert [choice.name for choice in found.controllers] == ["reference_reset"]


def test_agents_name_leaves_the_limits_that_a_recipe_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = RecipeEntry("long contexts", {"agent": {"max_context_tokens": 8192}})
    monkeypatch.setattr("envgym.trainer.recipes.RECIPES.grpo", recipe)
    agent = settings(recipe="grpo", agent={"name": "react"}).agent
    assert (agent.name, agent.max_context_tokens) == ("react", 8192)


def test_recipe_that_chooses_what_belongs_to_a_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "envgym.trainer.recipes.RECIPES.grpo", RecipeEntry("its own model", {"model": {"name": "tiny"}})
    )
    assert refusal(recipe="grpo").startswith("recipe must choose among curriculum, ")
    monkeypatch.setattr("envgym.trainer.recipes.RECIPES.grpo", RecipeEntry("a typo", {"optim": {"lrr": 1.0}}))
    assert "did you mean lr?" in refusal(recipe="grpo")


def test_complete_settings_give_themselves_back() -> None:
    found = settings(recipe="rloo", run={"steps": 7}, sft={"episodes": 3}, model={"lora": {"rank": 4}})
    assert train_settings(found.model_dump(mode="json")) == found


def test_directory_follows_the_name_unless_it_is_given() -> None:
    assert settings(run={"name": "cat"}).run.path == Path("runs/cat")
    assert settings(run={"name": "cat", "directory": "out/dog"}).run.path == Path("out/dog")


def test_env_is_called_by_its_id_unless_it_is_named() -> None:
    envs = settings(envs=[*ENVS, {"id": "math/arithmetic-v0", "name": "hard"}]).envs
    assert [env.label for env in envs] == ["math/arithmetic-v0", "hard"]


def test_file_is_read_with_its_overrides(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("recipe: grpo\nrun: {steps: 5}\nenvs:\n  - id: math/arithmetic-v0\n")
    found = load_train_settings(path, ["run.steps=9", "credit.name=rloo", "envs.0.settings.level=2"])
    assert (found.run.steps, found.credit.name, found.envs[0].settings) == (9, "rloo", {"level": 2})


def test_unknown_recipe_names_near_ones() -> None:
    assert refusal(recipe="dr-grpo").startswith(
        "recipe must be a known name, got 'dr-grpo' (train_settings); did you mean dr_grpo or "
    )


@pytest.mark.parametrize("recipe", [None, 3, ["grpo"]])
def test_recipe_that_is_no_name_is_refused(recipe: object) -> None:
    assert refusal(recipe=recipe).startswith("recipe must be a known name, got ")


@pytest.mark.parametrize(
    "sections,message",
    [
        ({"rn": {}}, "settings key must be known, got rn (train_settings); did you mean run?"),
        ({"optim": {"learning_rate": 1}}, "settings key must be known, got optim.learning_rate (train_settings); "),
        (
            {"model": {"dtype": "bfloat16"}},
            "settings key must be known, got model.dtype (train_settings); set model.precision=bfloat16 for ",
        ),
        (
            {"model": {"autocast": "bfloat16"}},
            "settings key must be known, got model.autocast (train_settings); set model.precision=mixed for ",
        ),
        ({"model": {"type": "bfloat16"}}, "settings key must be known, got model.type (train_settings); known keys: "),
        ({"envs": []}, "envs must hold 1 or more entries, got [] (train_settings)"),
        ({"envs": 3}, "envs must be a list, got 3 (train_settings)"),
        ({"envs": [{"name": "x"}]}, "envs.0.id must be set, got nothing (train_settings); add it to the file"),
        ({"run": {"steps": -1}}, "run.steps must be greater than or equal to 0, got -1 (train_settings)"),
        (
            {"sampling": {"temperature": 0}},
            "sampling.temperature must be above 0 in training, got 0 (sampling)",
        ),
        ({"sampling": {"top_p": 0.9}}, "sampling.top_p must be 1 in training, got 0.9 (sampling); leave it out"),
        ({"sampling": {"top_k": 5}}, "sampling.top_k must be 0 in training, got 5 (sampling); leave it out"),
        (
            {"model": {"adapter": "a"}},
            "model.lora must be set to train an adapter, got nothing (model)",
        ),
        ({"credit": 3}, "credit must be a mapping of keys, got 3 (train_settings); correct the value."),
        ({"agent": {"max_turn_tokens": 99, "max_context_tokens": 9}}, "max_turn_tokens must be less than max_context"),
        ({"model": {"tiny": {"hidden_size": 65}}}, "model.tiny.hidden_size must "),
    ],
)
def test_setting_that_cannot_be_is_one_sentence(sections: dict[str, Any], message: str) -> None:
    text = refusal(**sections)
    assert message in text
    assert len(text.splitlines()) == 1


def test_run_without_envs_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"envs must be set, got nothing \(train_settings\)"):
        train_settings({})
