"""The section `agent.program`: what it takes, what it cannot be used with, and programs that evaluations play."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from pydantic import ValidationError

from envgym import Ending, Scored
from envgym.agents.evaluation.play import message_player, token_player
from envgym.agents.loop.agent import AgentSettings
from envgym.agents.loop.program_settings import ProgramSettings, RewardSource
from envgym.agents.policies.scripted import FunctionPolicy, ScriptedPolicy
from envgym.agents.protocols import Sampling
from envgym.agents.rollout.programs.episode import run_program_episode
from envgym.agents.search import BestOf, Chain, Mcts
from envgym.agents.settings import EvaluationSettings
from envgym.core.trajectory import trajectories
from envgym.core.tree import Tree
from envgym.errors import InvalidInput, SettingsError
from envgym.trainer.checks.environments import check_program, warn_of_program_turns
from envgym.trainer.methods.allocators.guide import GuideGrpo
from envgym.trainer.methods.credit.outcome import Grpo
from envgym.trainer.methods.credit.turn_grpo import TurnGrpo
from envgym.trainer.methods.curricula.reworded import Reworded
from envgym.trainer.methods.curricula.uniform import Uniform
from tests.agents.rollout.programs import sample_programs
from tests.agents.rollout.programs.playing import sample
from tests.support.parrots import Parrot, char_agent, parrot_job

PROGRAM = """
def run(task):
    task.chat(task.messages)
    return {}
"""
PLAY = {"run": f"{sample_programs.__name__}:play"}


def settings(**program: object) -> AgentSettings:
    return AgentSettings.model_validate({"program": PLAY | program})


def test_a_program_is_a_function_or_a_command_and_has_defaults() -> None:
    program = settings().program
    assert program == ProgramSettings(run=PLAY["run"])
    assert (program.turns, program.seconds, program.reward, program.on_crash) == (64, 600, RewardSource.ENV, "invalid")
    command = settings(run=["python", "agent.py"]).program
    assert command is not None
    assert command.run == ("python", "agent.py")


@pytest.mark.parametrize(
    "wrong", [{"run": ""}, {"run": []}, {"turns": 0}, {"seconds": 0}, {"reward": "none"}, {"on_crash": float("nan")}]
)
def test_settings_out_of_range_are_refused(wrong: Mapping[str, object]) -> None:
    with pytest.raises(ValidationError):
        settings(**wrong)


def test_a_system_prompt_is_left_to_the_program() -> None:
    with pytest.raises(ValidationError, match=r"system_prompt must be left out with agent\.program"):
        AgentSettings.model_validate({"program": PLAY, "system_prompt": "Be brief."})


def test_a_program_that_cannot_be_loaded_is_refused_before_anything_is_sampled() -> None:
    with pytest.raises(InvalidInput, match="program must be a function that exists"):
        Chain().check(Parrot(), settings(run=f"{sample_programs.__name__}:missing"), group_size=8)
    with pytest.raises(InvalidInput, match="command must exist and be executable"):
        Chain().check(Parrot(), settings(run=["no-such-command-anywhere"]), group_size=8)
    Chain().check(Parrot(), settings(), group_size=8)


def test_a_search_that_forks_or_whose_episodes_share_a_prompt_is_refused() -> None:
    rule = r"search must be chain with agent\.program"
    with pytest.raises(SettingsError, match=rf"{rule}: the episodes of a tree begin with one prompt"):
        BestOf().check(Parrot(), settings(), group_size=8)
    with pytest.raises(SettingsError, match=rf"{rule}: the state of a program cannot be forked"):
        Mcts().check(Parrot(), settings(), group_size=8)


@pytest.mark.parametrize(
    "method,given", [(GuideGrpo(), "hints"), (Reworded(prompts={"p": "Now: {task}"}), "other prompts")]
)
def test_methods_that_change_prompts_are_refused(method: object, given: str) -> None:
    with pytest.raises(SettingsError, match=rf"leave prompts and start states as they are .* got one with .*{given}"):
        check_program(method, settings(), where="curriculum")
    check_program(method, AgentSettings(), where="curriculum")
    check_program(Uniform(), settings(), where="curriculum")


def test_a_credit_of_turns_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_program_turns(TurnGrpo(), "turn_grpo", AgentSettings())
    warn_of_program_turns(Grpo(), "grpo", settings())
    assert not caplog.records
    warn_of_program_turns(TurnGrpo(), "turn_grpo", settings())
    assert "credit turn_grpo reads the turns of an episode in their order" in caplog.text


# ---- evaluations ----------------------------------------------------------------------------------------------------


def check_played(trees: list[Tree], *, has_tokens: bool) -> None:
    assert [tree.id for tree in trees] == ["a", "b"]
    for tree in trees:
        (episode,) = trajectories(tree)
        assert (episode.ending, episode.reward) == (Ending.TERMINATED, Scored(value=0.25))
        assert [(message.role.value, message.content) for message in tree.messages] == [("user", "Q")]
        assert bool(episode.num_sampled) == has_tokens


def test_an_evaluation_plays_a_program_with_a_policy_of_tokens() -> None:
    agent = char_agent(program=PLAY)
    policy = ScriptedPolicy(partial(sample, words=["one"]))
    play = token_player(agent, policy, Chain(), EvaluationSettings(), concurrency=2)
    check_played(asyncio.run(play([parrot_job(tree_id=name) for name in "ab"], lambda tree: None)), has_tokens=True)


def test_an_evaluation_plays_the_same_program_with_a_model_that_is_reached_by_messages() -> None:
    policy = FunctionPolicy(lambda messages: "one")
    play = message_player(settings(), policy, Chain(), EvaluationSettings(), concurrency=2)
    check_played(asyncio.run(play([parrot_job(tree_id=name) for name in "ab"], lambda tree: None)), has_tokens=False)


def test_each_run_plays_the_program_as_it_is_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = AgentSettings.model_validate({"program": {"run": "agent.py:run", "reward": "result"}})

    def run(folder: str, rewards: tuple[float, float]) -> list[object]:
        """Begin a run, and edit the program between its episodes."""
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        Path("agent.py").write_text(PROGRAM.format(rewards[0]))
        Chain().check(Parrot(), agent, group_size=None)
        first = play_once()
        Path("agent.py").write_text(PROGRAM.format(rewards[1]))
        return [first, play_once()]

    def play_once() -> object:
        policy = ScriptedPolicy(partial(sample, words=["one"])).generate
        work = run_program_episode(parrot_job(), char_agent(program=agent.program), policy, sampling=Sampling())
        (trajectory,) = trajectories(asyncio.run(work))
        return trajectory.reward

    assert run("a", (0.25, 0.5)) == [Scored(value=0.25)] * 2
    assert run("a", (0.75, 1.0)) == [Scored(value=0.75)] * 2
    assert run("b", (0.125, 1.0)) == [Scored(value=0.125)] * 2
