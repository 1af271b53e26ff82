"""Methods by name: ours, by import path, by entry point; and a sentence for a name that leads nowhere."""

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from envgym.cli.plugin_kinds import plugin_rows
from envgym.config.plugins import Choice, override_settings
from envgym.config.settings import read_value
from envgym.core.trajectory import Group
from envgym.errors import InvalidInput
from envgym.trainer.method import build_method
from envgym.trainer.methods.losses import PpoClip
from envgym.trainer.methods.losses.base import LOSS
from envgym.trainer.methods.protocols import CREDIT, BatchCredit, Credit
from envgym.trainer.settings import SettingsFile, load_train_settings, train_settings
from envgym.trainer.tables import KINDS
from tests.support.example_trees import outcome_group

MODULE = '''
from envgym.config.settings import Settings
from envgym.trainer.methods.credit.outcome import episode_credits


class Best(Settings):
    """Advantage `bonus` for the best episodes of a group."""

    bonus: float = 1.0

    def __call__(self, group):
        rewards = [episode.reward.value for episode in group.valid]
        return episode_credits(group.valid, [self.bonus * (reward == max(rewards)) for reward in rewards])


def of_function(scale=1.0) -> Best:
    return Best(bonus=scale)


constant = 3
'''
NAME = "envgym_test_methods"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install a distribution with one method, found by import path and by entry point; return its module's name."""
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    info = tmp_path / f"{NAME}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[envgym.credit]\nbest = {NAME}:Best\ngone = {NAME}:Gone\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    return NAME


def choice(name: str, **settings: object) -> Choice:
    return Choice.model_validate({"name": name, **settings})


def refusal(point: str, chosen: Choice) -> str:
    """Return the message with which a choice is refused."""
    with pytest.raises(InvalidInput) as caught:
        KINDS[point].build(chosen)
    return str(caught.value)


def advantages(credit: Credit | BatchCredit, group: Group) -> list[float]:
    assert isinstance(credit, Credit)
    found = [given.advantages[-1] for given in credit(group)]
    return [value for value in found if isinstance(value, float)]


def test_settings_beside_the_name_are_the_methods_own() -> None:
    assert LOSS.build(choice("ppo_clip", clip_high=0.28)) == PpoClip(clip_high=0.28)


def test_method_is_found_by_import_path(package: str) -> None:
    credit = CREDIT.build(choice(f"{package}:Best", bonus=0.5))
    assert advantages(credit, outcome_group(1.0, 0.0, 1.0)) == [0.5, 0.0, 0.5]


def test_function_builds_a_method_too(package: str) -> None:
    credit = CREDIT.build(choice(f"{package}:of_function", scale=2.0))
    assert advantages(credit, outcome_group(0.0, 1.0)) == [0.0, 2.0]


def test_method_is_found_by_entry_point(package: str) -> None:
    del package  # it is installed
    credit = CREDIT.build(choice("best"))
    assert advantages(credit, outcome_group(0.0, 1.0)) == [0.0, 1.0]


def test_run_takes_a_method_of_another_package(package: str) -> None:
    data = {"envs": [{"id": "math/arithmetic-v0"}], "credit": {"name": f"{package}:Best", "bonus": 0.25}}
    credit = build_method(train_settings(data)).credit
    assert advantages(credit, outcome_group(0.0, 1.0)) == [0.0, 0.25]


def test_unknown_name_lists_near_ones(package: str) -> None:
    del package
    assert refusal("credit", choice("gropo")) == (
        "credit must be a known name, got 'gropo' (settings); did you mean grpo or opo or rloo?"
    )
    assert "did you mean best" in refusal("credit", choice("bst"))


@pytest.mark.parametrize("path", ["no_such_package:Credit", "no_such_file.py:Credit", ":Credit", "envgym:"])
def test_import_path_that_leads_nowhere_is_one_sentence(path: str) -> None:
    text = refusal("credit", choice(path))
    assert text.startswith(f"credit.name must name an importable class, got {path} (")
    assert text.endswith("; write package.module:Class of an installed package, or path/to/file.py:Class.")


def test_import_path_of_a_class_that_its_module_lacks_lists_near_names(package: str) -> None:
    must = "credit.name must name an importable class, got"
    for name, remedy in (("Bset", "did you mean Best?"), ("Worst", "choose one of: Best, of_function.")):
        sentence = f"{must} {package}:{name} ({package} has no class {name}); {remedy}"
        assert refusal("credit", choice(f"{package}:{name}")) == sentence
    assert refusal("credit", choice("mine.py")).endswith("; name its class too, such as mine.py:Mine.")


def test_import_path_to_what_is_no_class_is_refused(package: str) -> None:
    assert refusal("credit", choice(f"{package}:constant")).startswith("credit.name must name a credit, got ")


def test_entry_point_that_cannot_be_loaded_is_refused(package: str) -> None:
    del package
    assert refusal("credit", choice("gone")).startswith("credit.name must name an importable class, got ")


def test_setting_that_the_method_refuses_names_point_and_method() -> None:
    assert refusal("loss", choice("ppo_clip", clip_low=2)) == (
        "clip_low must be less than or equal to 1, got 2 (loss ppo_clip); correct the value."
    )
    assert refusal("loss", choice("ppo_clip", clip=0.1)) == (
        "settings key must be known, got clip (loss ppo_clip); did you mean clip_low?"
    )


def test_settings_model_behind_a_function_is_refused_alike(package: str) -> None:
    text = refusal("credit", choice(f"{package}:of_function", scale="much"))
    assert text.startswith("bonus must be a number, got much (credit ")


def test_keyword_that_a_function_does_not_take_is_refused(package: str) -> None:
    text = refusal("credit", choice(f"{package}:of_function", size=2))
    assert text.startswith("settings key must be known, got size (credit ")


def test_name_of_two_distributions_names_both(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "other" / "other_methods-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-methods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[envgym.credit]\nbest = {package}:of_function\n")
    monkeypatch.syspath_prepend(str(info.parent))
    told = refusal("credit", choice("best"))
    assert (
        f"credit best must be of one plug-in, got {package}:of_function of other-methods and {package}:Best of" in told
    )
    assert told.endswith("write the import path of the one that is meant.")
    assert refusal("credit", choice("gone")).startswith("credit.name must name an importable class"), "others go on"
    rows = {row.name: row.summary for row in plugin_rows(CREDIT)}
    assert rows["best"] == told
    assert rows["grpo"], "the list shows the rest"


FILE: dict[str, Any] = {
    "run": {"name": "r", "steps": 3},
    "agent": {"name": "plain", "max_turn_tokens": 4},
    "credit": {"name": "gae_token", "decay": 1.0, "discount": 0.9},
    "filter": "keep_all",
    "weights": [{"name": "entropy", "share": 0.5}],
    "objective": {"terms": [{"name": "t", "loss": {"name": "dpo", "beta": 1}, "coef": 0.1}]},
    "models": {"m": {"kind": {"name": "local", "path": "x"}}},
    "envs": [{"id": "e", "settings": {"name": "a", "b": 1}, "parties": {"user": {"name": "endpoint", "model": "q"}}}],
    "search": {"name": "outer", "inner": {"name": "x", "a": 1}},
}


@pytest.mark.parametrize(
    "overrides, path, expected",
    [
        (["credit.name=agent_prm"], "credit", {"name": "agent_prm"}),
        (["credit.name='gae_token'"], "credit", FILE["credit"]),
        (["credit.discount=0.5", "credit.name=b"], "credit", {"name": "b", "discount": 0.5}),
        (["credit.name=b", "credit.discount=0.5"], "credit", {"name": "b", "discount": 0.5}),
        (["credit={name: a, x: 1}", "credit.name=b"], "credit", {"name": "b"}),
        (["filter.name=prof"], "filter", {"name": "prof"}),
        (["filter.key=2"], "filter", {"name": "keep_all", "key": 2}),
        (["weights.0.name=k"], "weights", [{"name": "k"}]),
        (["objective.terms.0.loss.name=nll"], "objective.terms.0.loss", {"name": "nll"}),
        (["objective.terms.0.coef.name=cosine"], "objective.terms.0.coef", {"name": "cosine"}),
        (["models.m.kind.name=critic"], "models.m.kind", {"name": "critic"}),
        (["envs.0.parties.user.name=local"], "envs.0.parties.user", {"name": "local"}),
        (["search.inner.name=y"], "search", {"name": "outer", "inner": {"name": "y"}}),
        # a name that chooses no plug-in leaves what is beside it
        (["run.name=q"], "run", {"name": "q", "steps": 3}),
        (["agent.name=react"], "agent", {"name": "react", "max_turn_tokens": 4}),
        (["envs.0.settings.name=b"], "envs.0.settings", {"name": "b", "b": 1}),
        (["objective.terms.0.name=u"], "objective.terms.0.loss", {"name": "dpo", "beta": 1}),
    ],
)
def test_another_name_drops_settings_of_the_plug_in_before(overrides: list[str], path: str, expected: object) -> None:
    before = deepcopy(FILE)
    assert read_value(override_settings(SettingsFile, FILE, overrides), path) == expected
    assert before == FILE


def test_an_override_replaces_a_plug_in_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("envs: [{id: math/arithmetic-v0}]\ncredit: {name: rloo, beta: 0.5}\n")
    assert load_train_settings(tmp_path / "run.yaml", ["credit.name=grpo"]).credit == Choice(name="grpo")
    chosen = load_train_settings(tmp_path / "run.yaml", ["credit=rloo", "credit.beta=0.25"]).credit
    assert chosen == choice("rloo", beta=0.25)
