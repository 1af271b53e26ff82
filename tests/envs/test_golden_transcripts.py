"""Whole episodes, text compared exactly. Set ENVGYM_WRITE_GOLDEN=1 to write them anew.

A transcript is also the input of its test. The first line names the env and its arguments. In `*_oracle.txt` the oracle
acts again, in other files the actions are played again. A new transcript begins as a file with that line and actions.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import envgym
from envgym.conformance.env_under_test import ObservedEpisode, oracle_of, play
from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split
from envgym.core.turns import Scored
from tests.envs.requirements import require_packages, require_sandbox
from tests.support.lanes import marks_of

GOLDEN = Path(__file__).parent / "golden"
_ACTION = re.compile(r"\n\n\[agent\]\n(.*?)\n\n\[env: reward ", re.DOTALL)


def golden_names() -> list[str]:
    """Return the names of all transcripts, those of oracles first."""
    return sorted((path.stem for path in GOLDEN.glob("*.txt")), key=lambda name: (not name.endswith("_oracle"), name))


def read_golden(name: str) -> tuple[str, dict[str, JsonValue], list[str]]:
    """Return what a transcript was made with: env id, keyword arguments, actions."""
    text = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    env_id, kwargs = text.split("\n", 1)[0].split(" ", 1)
    return env_id, json.loads(kwargs), _ACTION.findall(text)


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(read_golden(name)[0])) for name in golden_names()])
def test_episode_equals_its_golden_transcript(name: str) -> None:
    env_id, kwargs, actions = read_golden(name)
    require_packages(env_id)
    require_sandbox(env_id)
    env = envgym.make(env_id, **kwargs)
    is_oracle = name.endswith("_oracle")
    agent = oracle_of(env) if is_oracle else lambda turn, observation: actions[turn]
    episode = play(env, agent, seed=0, task=env.unwrapped.tasks.task(Split.TRAIN, 0))
    text = transcript(env_id, kwargs, episode)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("ENVGYM_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert episode.reward == pytest.approx(1.0 if is_oracle else 0.0)


def transcript(env_id: str, kwargs: Mapping[str, JsonValue], episode: ObservedEpisode) -> str:
    """Write all that the agent is shown and says, with rewards and ending."""
    first = episode.first
    parts = [f"{env_id} {json.dumps(kwargs)}", f"task {first.task.id} {first.task.key[:16]}"]
    parts += [f"[system]\n{first.system_prompt}"] if first.system_prompt else []
    parts += [f"[tool] {spec.name} {json.dumps(spec.parameters)}\n{spec.description}" for spec in first.tools]
    parts.append(f"[env]\n{episode.observation}")
    for turn in episode.turns:
        assert isinstance(turn.reward, Scored)
        paid = f"{turn.reward.value:.6g}"
        roles = " ".join(message.role.value for message in turn.observation.messages)
        parts.append(f"[agent]\n{turn.action}")
        parts.append(f"[env: reward {paid}{f', as {roles}' if roles else ''}]\n{turn.observation}".rstrip())
    return "\n\n".join([*parts, f"{episode.ending}, reward {episode.reward:.6g}"]) + "\n"
