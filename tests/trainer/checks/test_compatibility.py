"""Choices that cannot work together are refused before a run begins, each with its reason; ours work."""

import ast
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.search.protocol import SEARCH
from envgym.errors import SettingsError
from envgym.trainer import method
from envgym.trainer.checks.compatibility import RULES
from envgym.trainer.method import build_method
from envgym.trainer.methods.requirements import Choices, Requires
from envgym.trainer.recipes import RECIPE
from envgym.trainer.settings import load_train_settings, train_settings
from envgym.trainer.tables import KINDS
from tests.support.sources import ROOT

EXAMPLES = ROOT / "examples"
CHAIN = {"name": "chain"}
REPLAYED = {"name": "again", "loss": "reinforce", "sources": ["REPLAY"]}
STATES = {"terms": [{"name": "states", "loss": {"name": "contrastive", "prompts": ["xml"]}}]}
IN_XML = {"name": "reworded", "prompts": {"xml": "<task>{task}</task>"}}
INSTEAD = {"name": "annotated", "annotation": "majority_vote", "instead": True}
DISTILLED = {"terms": [{"name": "distillation", "loss": "self_distillation"}]}
PREFIX = {"name": "prefix", "loss": "prefix_rft", "origins": ["DEMONSTRATION"]}

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "TreeCredit",
        {"credit": "tree_grpo"},
        "credit tree_grpo must be used with a search that grows trees",
    ),
    ("TreeCredit", {"credit": "tree_rl"}, "credit tree_rl must be used with a search that grows trees"),
    ("TreeCredit", {"recipe": "tree_rl", "search": CHAIN}, "got search chain"),
    ("TreeCredit", {"credit": "spo"}, "credit spo must be used with"),
    ("TreeCredit", {"credit": "tree_po"}, "credit tree_po must be used with"),
    ("GuideGrpo", {"allocator": "guide"}, "loss must be guide with allocator guide, got ppo_clip"),
    (
        "GuideGrpo",
        {"allocator": "guide", "loss": "guide", "correction": "tis"},
        "correction must be none with allocator guide",
    ),
    ("DeepSearch", {"credit": "deep_search"}, "credit deep_search must be used with search mcts"),
    ("DeepSearch", {"recipe": "deep_search", "search": "random_expand"}, "got search random_expand"),
    (
        "Sibling",
        {"credit": "sibling", "search": "random_expand", "objective": {"shared_tokens": "once"}},
        "objective.shared_tokens must be per_path with credit sibling",
    ),
    (
        "NodeWeights",
        {"credit": "planned", "search": "planned"},
        "objective.shared_tokens must be once with credit planned",
    ),
    (
        "fitted_scale_needs_other_groups",
        {"credit": {"name": "rloo", "beta": "fitted"}, "rollout": {"groups": 1}},
        "rollout.groups must be at least 2 for rloo with beta=fitted, .* got 1",
    ),
    ("old_samples_need_a_correction", {"rollout": {"staleness": 4}}, "rollout.staleness must be at most 1"),
    (
        "old_samples_need_a_correction",  # no correction applies to this loss: none is proposed
        {"loss": "dpo", "objective": {"aggregation": "token-sum"}, "rollout": {"staleness": 4}},
        "rollout.staleness must be at most 1 .*; set objective.old_policy=rollout",
    ),
    ("ZeroVariance", {"credit": "gae_turn"}, "filter must keep groups with zero reward variance"),
    (
        "RewardVariance",
        {"recipe": "starpo_s", "rollout": {"group_size": 1}},
        "rollout.group_size must be at least 2 with filter top_variance",
    ),
    ("Reinforce", {"loss": "reinforce", "optim": {"epochs": 2}}, "optim.epochs must be 1 with loss"),
    ("Reinforce", {"recipe": "rloo", "optim": {"minibatches": 4}}, "optim.minibatches must be 1"),
    (
        "Reinforce",
        {"loss": "reinforce", "objective": {"old_policy": "rollout"}},
        "objective.old_policy must be recomputed with loss reinforce",
    ),
    (
        "value_clip_needs_several_updates",
        {"credit": "gae_turn", "filter": "keep_all", "critic": {"clip": 0.2}},
        "critic.clip must be used with several updates per step",
    ),
    (
        "PpoClip",
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
        "prompts_are_kept",
        {"objective": STATES},
        "loss contrastive must be used with a curriculum that renders its prompt xml, got uniform with none",
    ),
    (
        "prompts_are_kept",
        {"loss": {"name": "contrastive", "prompts": ["xml", "prose"]}, "curriculum": IN_XML},
        r"its prompt prose, got reworded with xml \(settings\); set curriculum.name=reworded",
    ),
    (
        "AnnotatedTurns",
        {"credit": "annotated_turns", "loss": "reinforce"},
        "filter must keep groups with zero reward variance for credit annotated_turns, .* got zero_variance",
    ),
    (
        "AnnotatedTurns",
        {"credit": "annotated_turns", "filter": "keep_all", "shaping": "overlong"},
        "shaping must be none with credit annotated_turns, .* got overlong",
    ),
    (
        "Annotated",
        {"shaping": INSTEAD, "filter": {"name": "zero_variance", "rewards": "env"}},
        "filter.rewards must be shaped with shaping.instead=true",
    ),
    (
        "Annotated",
        {"shaping": INSTEAD, "filter": "prof", "rollout": {"group_size": 8}},
        "filter.rewards must be shaped with shaping.instead=true",
    ),
    ("Annotated", {"shaping": INSTEAD, "allocator": "reinforce_ada"}, "allocator must be null with"),
    ("Annotated", {"shaping": INSTEAD, "replay": "rlep"}, "replay must be null with shaping.instead"),
    (
        "Rlep",
        {"replay": {"name": "rlep", "collect": False}},
        "replay.directory must be given with replay.collect=false",
    ),
    ("GuideLoss", {"loss": "guide"}, "loss guide must be used with allocator guide, .* got none"),
    (
        "prompts_are_kept",
        {"objective": DISTILLED},
        "loss self_distillation must be used with a curriculum that keeps its prompt skill, got uniform with none",
    ),
    (
        "prompts_are_kept",
        {"objective": DISTILLED, "curriculum": {"name": "hinted", "keep_as": "teacher"}},
        "that keeps its prompt skill, got hinted with teacher, plain",
    ),
    (
        "allocator_needs_room",
        {"allocator": "reinforce_ada", "rollout": {"group_size": 8, "max_group_size": 8}},
        r"rollout.max_group_size must be above rollout.group_size \(8\) with an allocator",
    ),
    (
        "prefixes_need_demonstrations",
        {"objective": {"terms": [PREFIX]}},
        "objective term prefix must be used with a method that starts episodes inside demonstrations",
    ),
    (
        "prefixes_need_demonstrations",
        {"objective": {"terms": [PREFIX]}, "curriculum": "r3"},
        "objective term prefix must be used with a method that starts episodes inside demonstrations",
    ),
    (
        "PrefixRft",
        {"loss": "prefix_rft"},
        r"loss prefix_rft of the policy's loss must be used with origins \[DEMONSTRATION\], got \[POLICY\]",
    ),
    (
        "PrefixRft",
        {"objective": {"terms": [{"name": "prefix", "loss": "prefix_rft"}]}},
        "loss prefix_rft of objective term prefix must be used with origins",
    ),
    (
        "ScafGrpo",
        {"allocator": "scaf_grpo", "run": {"steps": 50}},
        r"allocator.warmup_steps must be below run.steps \(50\) with allocator scaf_grpo, .* got 50",
    ),
    (
        "Contrastive",
        {"objective": STATES, "curriculum": IN_XML, "rollout": {"groups": 3}, "optim": {"minibatches": 2}},
        "rollout.groups must be at least 2 for each minibatch with loss contrastive, .* got 3 for 2",
    ),
    (
        "prefixes_need_demonstrations",
        {"objective": {"terms": [PREFIX]}, "curriculum": "envgym.trainer.methods.curricula.uniform:Uniform"},
        "objective term prefix must be used with a method that starts episodes inside demonstrations",
    ),
    (
        "old_samples_need_a_correction",
        {"rollout": {"staleness": 4}, "correction": "envgym.trainer.methods.corrections.base:NoCorrection"},
        "rollout.staleness must be at most 1",
    ),
    (
        "NodeWeights",
        {"credit": "planned_gae", "filter": "keep_all", "search": "planned"},
        "once with credit planned_gae",
    ),
    (
        "fitted_scale_needs_other_groups",
        {"credit": {"name": "gae_turn", "beta": "fitted"}, "filter": "keep_all", "rollout": {"groups": 1}},
        "rollout.groups must be at least 2 for gae_turn with beta=fitted",
    ),
    ("Prof", {"filter": "prof", "rollout": {"group_size": 5}}, r"at least filter.remove \+ 2 = 6 .* got 5"),
    (
        "groups_are_compared",
        {"filter": "keep_all", "rollout": {"group_size": 1}},
        "at least 2 for grpo, which compares",
    ),
]

SEEN_BY_RUNS = {"PrefixRftAllocator"}
"""Plug-ins that read a run when they are built; `test_prefix_rft_run.py` shows what they require."""

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
    {"credit": "annotated_turns", "loss": "reinforce", "filter": "keep_all"},
    {"shaping": INSTEAD},
    {"shaping": INSTEAD, "filter": {"name": "prof", "rewards": "shaped"}, "rollout": {"group_size": 8}},
    {"filter": {"name": "zero_variance", "rewards": "env"}, "shaping": "overlong"},
    {"allocator": "scaf_grpo", "run": {"steps": 51}},
    {"objective": DISTILLED, "curriculum": {"name": "hinted", "keep_as": "skill"}},
    {"credit": "reinforce_ada", "shaping": "overlong"},
    {
        "objective": {"terms": [{"name": "teacher", "loss": {"name": "self_distillation", "model": "old"}}]},
        "models": {"old": {"kind": "snapshot"}},
    },
    {"filter": "prof", "rollout": {"group_size": 6}},
    {"credit": "annotated_turns", "loss": "reinforce", "filter": "keep_all", "rollout": {"group_size": 1}},
    {"credit": "gae_turn", "filter": "keep_all", "rollout": {"group_size": 1}},
]


def chosen(sections: dict[str, Any]) -> Any:
    return train_settings({"envs": [{"id": "math/arithmetic-v0"}], **sections})


def asked(sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Choices, list[object]]:
    """Return the choices of a run, and the plug-ins that are asked about them; none is asked."""
    calls: list[tuple[Choices, list[object]]] = []
    monkeypatch.setattr(method, "check_choices", lambda *call: calls.append(call))
    build_method(chosen(sections))
    return calls[-1]


@pytest.mark.parametrize("requirement, sections, sentence", REFUSED)
def test_combination_that_cannot_work_is_refused(
    requirement: str, sections: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=sentence):
        build_method(chosen(sections))
    choices, plugins = asked(sections, monkeypatch)
    required = [plugin.requires for plugin in plugins if isinstance(plugin, Requires)]
    refusing = [item.__qualname__ for item in (*required, *RULES) if item(choices) is not None]
    assert refusing[0].removesuffix(".requires") == requirement


def test_every_requirement_refuses_something() -> None:
    plugins = [kind.load(name) for kind in (*KINDS.values(), SEARCH) for name in kind.table]
    ours = [plugin.requires for plugin in plugins if hasattr(plugin, "requires")]
    names = {item.__qualname__.removesuffix(".requires") for item in (*ours, *RULES)}
    assert names == {name for name, _, _ in REFUSED} | SEEN_BY_RUNS
    assert len(ours) >= 18


def name_comparisons(code: ast.AST) -> list[str]:
    """Return where a name is compared with text or looked up in a constant, and where a table of plug-ins is read."""
    found: list[str] = []
    for node in (node for node in ast.walk(code) if isinstance(node, ast.Compare)):
        inner = list(ast.walk(node))
        read = {part.attr for part in inner if isinstance(part, ast.Attribute)}
        is_text = any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in inner)
        is_constant = any(isinstance(part, ast.Name) and part.id.isupper() for part in inner)
        if "table" in read or (read & {"name", "names"} and (is_text or is_constant)):
            found.append(ast.unparse(node))
    return found


def test_no_check_and_no_requirement_asks_for_the_name_of_a_plugin() -> None:
    """Another package's plug-in that can do the same must get the same answer."""
    checks = [ast.parse(path.read_text()) for path in sorted((ROOT / "trainer/checks").glob("*.py"))]
    methods = [ast.parse(path.read_text()) for path in sorted((ROOT / "trainer/methods").rglob("*.py"))]
    defined = [node for tree in methods for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    required = [node for node in defined if node.name == "requires"]
    assert len(required) >= 18
    assert [text for code in (*checks, *required) for text in name_comparisons(code)] == []
    for text in ("settings.filter.name == 'prof'", "choices.names['credit'] in OURS", "name in CREDIT.table"):
        assert name_comparisons(ast.parse(text)) == [text]


@pytest.mark.parametrize("sections", WORKING)
def test_combination_that_works_is_not_refused(sections: dict[str, Any]) -> None:
    build_method(chosen(sections))


@pytest.mark.parametrize("recipe", RECIPE.table)
def test_every_recipe_of_ours_works(recipe: str) -> None:
    build_method(chosen({"recipe": recipe}))


@pytest.mark.parametrize("config", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_works(config: Path) -> None:
    build_method(load_train_settings(config))


@pytest.mark.parametrize("credit", ["gdpo", "istar", "psr_nsr"])
def test_a_filter_that_drops_what_a_credit_trains_is_logged(credit: str, caplog: pytest.LogCaptureFixture) -> None:
    for keep in ("keep_all", "zero_variance"):
        build_method(chosen({"credit": credit, "filter": keep}))
    build_method(chosen({"credit": credit, "filter": "zero_variance"}), warns=False)
    build_method(chosen({"credit": "grpo"}))
    (message,) = caplog.messages
    assert message.startswith(f"filter zero_variance drops groups of equal rewards, which credit {credit} would train")


def test_a_baseline_of_other_rewards_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    for shaping in ("none", "overlong"):
        build_method(chosen({"credit": "reinforce_ada", "allocator": "reinforce_ada", "shaping": shaping}))
    (message,) = caplog.messages
    assert message.endswith("from successes after shaping overlong")
