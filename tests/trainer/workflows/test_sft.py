"""The warm start: which episodes are worth imitating, and whose tokens a recording holds."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from envgym import Action, Reply
from envgym.agents.loop.agent import Agent, AgentSettings
from envgym.config.plugins import Choice
from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Edge, Tree
from envgym.core.turns import is_success
from envgym.errors import SettingsError
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import episode_rows
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.phases import dry_runs
from envgym.trainer.train import train
from envgym.trainer.workflows.demonstrations import Demonstrations, check_lengths, demonstration_sources
from envgym.trainer.workflows.settings import SftSettings
from envgym.trainer.workflows.sft import likelihood_rows
from tests.support.example_trees import outcome_tree
from tests.support.parrots import char_agent, said, show
from tests.support.tiny_runs import EvenWords, tiny_settings


def episode(reward: float | None, name: str = "oracle/0") -> Trajectory:
    (found,) = trajectories(outcome_tree(name, reward))
    return found


def test_only_success_is_imitated() -> None:
    kept = [is_success(episode(reward).reward, 0.75) for reward in (1.0, 0.75, 0.5, 0.0, None)]
    assert kept == [True, True, False, False, False]  # 0.5 was paid, and is no success
    assert is_success(episode(-0.25).reward, -0.5)


def test_every_trained_token_of_a_demonstration_has_advantage_one() -> None:
    (row,) = likelihood_rows(episode(0.0))
    assert [advantage for advantage, trains in zip(row.advantages, row.loss_mask, strict=True) if trains] == [1.0, 1.0]


def recorded(directory: Path, tree: Tree | None) -> SftSettings:
    run = RunDirectory.create(directory, name="teacher", config={})
    if tree is not None:
        run.write_episodes(1, episode_rows([tree], step=1))
    return SftSettings(source=Choice.model_validate({"name": "recorded", "directory": str(directory)}))


def speaking(agent: Agent, text: str, *, strings: tuple[str, ...] | None = None) -> Tree:
    """Return an episode whose prompt is `text`, shown as the agent shows it unless `strings` say otherwise."""
    tree, ids = outcome_tree("t", 1.0), said(text)
    shown = agent.renderer.token_strings(ids) if strings is None else strings
    prompt = Segment(origin=Origin.PROMPT, token_ids=ids, token_strings=shown)
    root, turn = tree.nodes
    answer = tuple(replace(segment, token_strings=()) for segment in turn.edge.segments)  # nothing is said of these
    root = replace(root, edge=Edge(segments=(prompt,), ends_turn=False))
    return replace(tree, nodes=(root, replace(turn, edge=replace(turn.edge, segments=answer))))


def test_recording_of_this_vocabulary_is_taken(tmp_path: Path) -> None:
    agent = char_agent()
    sft = recorded(tmp_path / "run", speaking(agent, "yes"))
    (source,) = demonstration_sources(sft)
    source.check_agent(agent)
    assert demonstration_sources(None) == []


def test_recording_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    agent = char_agent()
    (first, *_) = said("yes")
    sft = recorded(tmp_path / "run", speaking(agent, "yes", strings=("Ja", *show(said("yes"))[1:])))
    (source,) = demonstration_sources(sft)
    with pytest.raises(SettingsError, match=f"episodes must hold tokens of this model's vocabulary, got id {first}"):
        source.check_agent(agent)


def test_run_that_saved_no_episode_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"directory must hold train episodes \(.*\), got none"):
        demonstration_sources(recorded(tmp_path / "run", None))


def demonstrations(*turn_lengths: int, num_truncated: int = 0) -> Demonstrations:
    trees = [outcome_tree(f"oracle/{number}", 1.0, tokens=length) for number, length in enumerate(turn_lengths)]
    imitated = [episode for tree in trees for episode in trajectories(tree)]
    return Demonstrations(len(imitated) + num_truncated, imitated, num_truncated)


def limits(turn: int, context: int = 100, **settings: Any) -> AgentSettings:  # plain data
    return AgentSettings(max_turn_tokens=turn, max_context_tokens=context, **settings)


def test_demonstrations_none_of_which_fits_the_limits_of_the_agent_are_refused() -> None:
    message = (
        r"max_turn_tokens must hold the turns of the demonstrations, got 4 where 2 of 2 have turns of up to 7 tokens"
    )
    with pytest.raises(SettingsError, match=message):
        check_lengths(demonstrations(5, 7), limits(4), where="sft")
    message = r"agent.max_context_tokens must hold the demonstrations, got 9 where 3 of 3 do not fit \(sft\)"
    with pytest.raises(SettingsError, match=message):
        check_lengths(demonstrations(num_truncated=3), limits(4, context=9), where="sft")
    (prompt, *_) = episode(1.0).rows
    context = len(prompt) - 2  # without the two tokens of the turn
    with pytest.raises(SettingsError, match=f"got {context + 6} where 1 of 1 do not fit"):
        check_lengths(demonstrations(7), limits(context + 5, context=context + 6), where="sft")


def test_demonstrations_some_of_which_fit_are_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    check_lengths(demonstrations(5, 4, 4), limits(4), where="sft")
    check_lengths(demonstrations(4, num_truncated=1), limits(4), where="sft")
    check_lengths(demonstrations(6), limits(4, on_length="close"), where="sft")  # turns that are closed: never refused
    turns, contexts, closed = caplog.messages
    assert "got 4 where 1 of 3 have turns of up to 5 tokens (sft); set it to 5." in turns
    assert "got 4 where 1 of 1 have turns of up to 6 tokens (sft)" in closed
    assert "got 100 where 1 of 2 do not fit (sft); raise it" in contexts


def test_demonstrations_that_fit_are_taken_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    check_lengths(demonstrations(5, 4), limits(5), where="sft")
    check_lengths(demonstrations(5), limits(4, on_length="close"), where="sft")  # the token that ends a turn is spared
    check_lengths(demonstrations(), limits(4), where="sft")
    assert caplog.messages == []


def test_warm_start_and_dry_run_refuse_limits_that_hold_no_demonstration(tmp_path: Path) -> None:
    short = tiny_settings(tmp_path / "run", agent={"max_turn_tokens": 1, "on_length": "truncate"}, sft={"episodes": 3})
    with pytest.raises(SettingsError, match=r"max_turn_tokens must .*, got 1 where 3 of 3 have turns of up to \d+ tok"):
        train(short)
    with pytest.raises(SettingsError, match=r"max_turn_tokens must .*, got 1 where 3 of 3 have turns of up to \d+ tok"):
        dry_runs([short])[0]


def test_warm_start_without_success_says_how_episodes_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sft = {"episodes": 4, "batch_size": 4, "lr": 1e-9, "until_success": 1.0, "check_every": 1, "check_tasks": 5}
    unreachable = {"success_at": 1.0, "tasks": 1}
    envs = [{"id": "tests.trainer.workflows.test_sft:Never"}]
    train(tiny_settings(tmp_path / "run", run={"steps": 0}, envs=envs, sft=sft, evaluation=unreachable))
    (told,) = caplog.messages
    assert told == "the warm start ended at success 0.0%: its 5 episodes of the last check ended as TERMINATED 100%"


def test_an_interrupt_ends_the_warm_start_after_the_update_under_way(tmp_path: Path) -> None:
    class Interrupting(Callback):
        updates: ClassVar[list[tuple[int, int]]] = []

        def on_progress(self, phase: str, done: int, total: int, detail: str = "") -> None:
            if phase == "warm start":
                self.updates.append((done, total))
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tiny_settings(tmp_path, sft={"episodes": 24, "batch_size": 4}), callbacks=[Interrupting()])
    assert Interrupting.updates == [(1, 6)]


class Never(EvenWords):
    """Pays the oracle alone."""

    def respond(self, action: Action) -> Reply:
        paid = action.content == self.oracle()
        return replace(super().respond(action), reward=paid / 2)
