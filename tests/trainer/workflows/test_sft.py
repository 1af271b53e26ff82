"""The warm start: which episodes are worth imitating, and whose tokens a recording holds."""

from dataclasses import replace
from pathlib import Path

import pytest

from envgym.agents.loop.agent import Agent
from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Edge, Tree
from envgym.episodes import episode_rows
from envgym.errors import SettingsError
from envgym.plugins import Choice
from envgym.runs import RunDirectory
from envgym.trainer.sections import SftSettings
from envgym.trainer.workflows.demonstrations import demonstration_sources, is_success
from envgym.trainer.workflows.sft import likelihood_rows
from tests.support.example_trees import outcome_tree
from tests.support.parrots import char_agent, said, show


def episode(reward: float | None, name: str = "oracle/0") -> Trajectory:
    (found,) = trajectories(outcome_tree(name, reward))
    return found


def test_only_success_is_imitated() -> None:
    kept = [is_success(episode(reward), 0.75) for reward in (1.0, 0.75, 0.5, 0.0, None)]
    assert kept == [True, True, False, False, False]  # 0.5 was paid, and is no success
    assert is_success(episode(-0.25), -0.5)


def test_every_trained_token_of_a_demonstration_has_advantage_one() -> None:
    (row,) = likelihood_rows(episode(0.0))
    assert [advantage for advantage, trains in zip(row.advantages, row.loss_mask, strict=True) if trains] == [1.0, 1.0]


# ---- recorded episodes -------------------------------------------------------------------------------------------


def recorded(directory: Path, tree: Tree | None) -> SftSettings:
    """Return settings that name a run with one train episode, or none."""
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
