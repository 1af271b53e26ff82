"""What a run with workers is refused for."""

from pathlib import Path

import pytest

from envgym.agents.search import Chain
from envgym.cli.main import main
from envgym.errors import SettingsError
from envgym.trainer.env_source import EnvSource
from envgym.trainer.launch.launch import check_addresses
from envgym.trainer.launch.workers.addresses import TOKEN_VARIABLE
from envgym.trainer.launch.workers.checks import check_parts
from envgym.trainer.models.opponent import ModelParty
from tests.support.tiny_runs import EvenDuel, EvenWords, tiny_settings


class Remembering(Chain):
    """A search with a state of its own."""

    def save(self, folder: Path) -> None:
        return

    def load(self, folder: Path) -> None:
        return


def make_duel() -> EvenDuel:
    env = EvenDuel()
    env.parties = {"opponent": ModelParty("other")}
    return env


WORDS = EnvSource(label="words", env_id="words", weight=1, make=EvenWords, tasks=EvenWords.tasks, held_out=())
DUEL = EnvSource(label="duel", env_id="duel", weight=1, make=make_duel, tasks=EvenDuel.tasks, held_out=())


def test_what_has_a_state_in_the_process_of_the_run_is_refused() -> None:
    check_parts({"words": WORDS}, Chain(), 2)
    told = r"launch\.rollout_workers must be 0 with a search that keeps a state, got 2 \(search Remembering\)"
    with pytest.raises(SettingsError, match=told):
        check_parts({"words": WORDS}, Remembering(), 2)
    told = r"launch\.rollout_workers must be 0 where a model of the run plays in an env, got 2 \(parties of duel\)"
    with pytest.raises(SettingsError, match=told):
        check_parts({"words": WORDS, "duel": DUEL}, Chain(), 2)


def test_policy_servers_of_the_settings_suffice() -> None:
    backend = {"name": "policy_servers", "servers": ["http://10.0.0.7:8001"]}
    check_addresses(tiny_settings(launch={"rollout_workers": 1}, engine={"backend": backend}))


def test_a_worker_without_a_token_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert main(["rollout-worker"]) == 2
    told = "envgym: environment variable must hold the token of the run, whose settings may name code, got "
    assert capsys.readouterr().err.startswith(f"{told}{TOKEN_VARIABLE} (envgym rollout-worker); let envgym train")
