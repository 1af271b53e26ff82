"""Sections of a run: what an env is made of."""

import pytest

from envgym.agents.settings import EnvSettings, EvalSettings, RunSettings
from envgym.errors import SettingsError, UnknownName
from envgym.party import ScriptedParty
from envgym.trainer.settings import TrainSettings
from envgym.wrappers import TimeLimit, TurnLimit

GUESS = {"id": "puzzles/guess_number-v0"}


def test_wrappers_stand_around_an_env_the_innermost_first() -> None:
    wrappers = [{"name": "turn_limit", "max_turns": 3}, {"name": "time_limit", "limit_s": 9.0}]
    env = EnvSettings.model_validate({**GUESS, "wrappers": wrappers}).make()
    assert isinstance(env, TimeLimit)
    assert isinstance(env.env, TurnLimit)
    assert (env.limit_s, env.env.max_turns) == (9.0, 3)


def test_parties_are_handed_to_the_env_under_their_roles() -> None:
    party = {"name": "scripted", "script": ["Hello."], "seed": 4}
    env = EnvSettings.model_validate({**GUESS, "parties": {"guide": party}}).make()
    scripted = env.unwrapped.parties["guide"]
    assert isinstance(scripted, ScriptedParty)
    assert (scripted.script, scripted.seed) == (("Hello.",), 4)


def test_unknown_wrapper_lists_near_names_and_a_wrong_setting_is_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean time_limit"):
        EnvSettings.model_validate({**GUESS, "wrappers": ["time_limits"]}).make()
    with pytest.raises(SettingsError, match=r"settings key must be known, got turns .*did you mean max_turns"):
        EnvSettings.model_validate({**GUESS, "wrappers": [{"name": "turn_limit", "turns": 3}]}).make()


def test_a_run_is_written_where_its_name_or_its_directory_says() -> None:
    assert str(RunSettings(name="cat").path) == "runs/cat"
    assert str(RunSettings(name="cat", directory="out/dog").path) == "out/dog"


def test_no_section_has_more_than_twelve_fields() -> None:
    sections = {
        kind
        for settings in (TrainSettings, EvalSettings)
        for field in settings.model_fields.values()
        if isinstance(kind := field.annotation, type) and hasattr(kind, "model_fields")
    }
    assert {kind.__name__: len(kind.model_fields) for kind in sections if len(kind.model_fields) > 12} == {}
