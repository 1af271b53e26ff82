"""Choices that cannot work together are refused before a run begins, each with its reason; ours work."""

from pathlib import Path
from typing import Any

import pytest

from envgym.errors import SettingsError
from envgym.trainer.catalog import RECIPE
from envgym.trainer.checks.compatibility import RULES
from envgym.trainer.method import build_method
from envgym.trainer.settings import load_train_settings, train_settings

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CHAIN = {"name": "chain"}
REPLAYED = {"name": "again", "loss": "reinforce", "sources": ["REPLAY"]}
STATES = {"terms": [{"name": "states", "loss": {"name": "contrastive", "prompts": ["xml"]}}]}
IN_XML = {"name": "reworded", "prompts": {"xml": "<task>{task}</task>"}}

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "tree_credit_needs_branches",
        {"credit": "tree_grpo"},
        "credit tree_grpo must be used with a search that grows trees",
    ),
    ("tree_credit_needs_branches", {"credit": "tree_rl"}, "credit tree_rl must be used with a search that grows trees"),
    ("tree_credit_needs_branches", {"recipe": "tree_rl", "search": CHAIN}, "got search chain"),
    ("tree_credit_needs_branches", {"credit": "spo"}, "credit spo must be used with"),
    ("tree_credit_needs_branches", {"credit": "tree_po"}, "credit tree_po must be used with"),
    ("guide_needs_its_ratio", {"allocator": "guide"}, "loss must be guide with allocator guide, got ppo_clip"),
    (
        "guide_needs_its_ratio",
        {"allocator": "guide", "loss": "guide", "correction": "tis"},
        "correction must be none with allocator guide",
    ),
    ("deep_search_needs_mcts", {"credit": "deep_search"}, "credit deep_search must be used with search mcts"),
    ("deep_search_needs_mcts", {"recipe": "deep_search", "search": "random_expand"}, "got search random_expand"),
    (
        "sibling_needs_rows_per_path",
        {"credit": "sibling", "search": "random_expand", "objective": {"shared_tokens": "once"}},
        "objective.shared_tokens must be per_path with credit sibling",
    ),
    (
        "planned_trains_tokens_once",
        {"credit": "planned", "search": "planned"},
        "objective.shared_tokens must be once with credit planned",
    ),
    (
        "fitted_scale_needs_other_groups",
        {"credit": {"name": "rloo", "beta": "fitted"}, "rollout": {"groups": 1}},
        "rollout.groups must be at least 2 for rloo with beta=fitted, .* got 1",
    ),
    ("old_samples_need_a_correction", {"rollout": {"staleness": 4}}, "rollout.staleness must be at most 1"),
    ("critic_needs_all_groups", {"credit": "gae_turn"}, "filter must keep groups with zero reward variance"),
    (
        "variance_needs_two_episodes",
        {"recipe": "starpo_s", "rollout": {"group_size": 1}},
        "rollout.group_size must be at least 2 with filter top_variance",
    ),
    ("reinforce_needs_one_epoch", {"loss": "reinforce", "optim": {"epochs": 2}}, "optim.epochs must be 1 with loss"),
    ("reinforce_needs_one_minibatch", {"recipe": "rloo", "optim": {"minibatches": 4}}, "optim.minibatches must be 1"),
    (
        "reinforce_has_no_old_policy",
        {"loss": "reinforce", "objective": {"old_policy": "rollout"}},
        "objective.old_policy must be recomputed with loss reinforce",
    ),
    (
        "value_clip_needs_several_updates",
        {"credit": "gae_turn", "filter": "keep_all", "critic": {"clip": 0.2}},
        "critic.clip must be used with several updates per step",
    ),
    (
        "dual_clip_lies_beyond_the_clip",
        {"loss": {"clip_high": 0.28, "dual_clip": 1.2}},
        r"loss.dual_clip must be above 1 \+ clip_high \(1.28\)",
    ),
    (
        "terms_need_their_sources",
        {"objective": {"terms": [REPLAYED]}},
        "objective term again must be used with a source of REPLAY tokens",
    ),
    (
        "terms_need_their_sources",
        {"objective": {"terms": [{**REPLAYED, "sources": ["DEMONSTRATION"]}]}},
        "objective term again must be used with a source of DEMONSTRATION tokens",
    ),
    (
        "states_need_their_prompts",
        {"objective": STATES},
        "loss contrastive must be used with a curriculum that renders its prompt xml, got uniform with none",
    ),
    (
        "states_need_their_prompts",
        {"loss": {"name": "contrastive", "prompts": ["xml", "prose"]}, "curriculum": IN_XML},
        r"its prompt prose, got reworded with xml \(settings\); set curriculum.name=reworded",
    ),
    (
        "contrastive_needs_two_tasks",
        {"objective": STATES, "curriculum": IN_XML, "rollout": {"groups": 3}, "optim": {"minibatches": 2}},
        "rollout.groups must be at least 2 for each minibatch with loss contrastive, .* got 3 for 2",
    ),
]

WORKING: list[dict[str, Any]] = [
    {"credit": "tree_grpo", "search": "random_expand"},
    {"credit": "sibling"},  # of chains it is turn_grpo
    {"credit": "sibling", "search": "random_expand"},
    {"credit": "planned"},  # of chains it is turn_grpo with a fitted scale
    {"credit": "planned", "search": "planned", "objective": {"shared_tokens": "once"}},
    {"credit": {"name": "planned", "beta": 1.0}, "rollout": {"groups": 1}},
    {"rollout": {"staleness": 1}},
    {"rollout": {"staleness": 4}, "correction": "tis"},
    {"rollout": {"staleness": 4}, "objective": {"old_policy": "rollout"}},
    {"rollout": {"staleness": 4}, "correction": "envgym.trainer.methods.corrections.base:NoCorrection"},
    {"credit": "gae_turn", "filter": "keep_all", "critic": {"clip": 0.2}, "optim": {"minibatches": 2}},
    {"recipe": "starpo_s"},
    {"loss": {"dual_clip": 3.0}, "optim": {"epochs": 2, "minibatches": 2}},
    {"objective": {"terms": [REPLAYED]}, "replay": "rlep"},
    {"objective": STATES, "curriculum": IN_XML, "rollout": {"groups": 4}, "optim": {"minibatches": 2}},
    {"objective": STATES, "curriculum": {"name": "hinted", "keep_as": "xml"}},
    {
        "objective": STATES,
        "curriculum": {"name": "skill_bank", "prompt": "xml", "skills": [{"name": "a", "text": "b"}]},
    },
    {"agent": {"context": "drop_oldest_turns"}},
]


def chosen(sections: dict[str, Any]) -> Any:
    return train_settings({"envs": [{"id": "math/arithmetic-v0"}], **sections})


@pytest.mark.parametrize("rule, sections, sentence", REFUSED)
def test_combination_that_cannot_work_is_refused(rule: str, sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        build_method(chosen(sections))


def test_every_rule_refuses_something() -> None:
    assert {rule.__name__ for rule in RULES} == {name for name, _, _ in REFUSED}
    assert len(RULES) >= 11


@pytest.mark.parametrize("sections", WORKING)
def test_combination_that_works_is_not_refused(sections: dict[str, Any]) -> None:
    build_method(chosen(sections))


@pytest.mark.parametrize("recipe", RECIPE.table)
def test_every_recipe_of_ours_works(recipe: str) -> None:
    build_method(chosen({"recipe": recipe}))


@pytest.mark.parametrize("config", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_works(config: Path) -> None:
    build_method(load_train_settings(config))
