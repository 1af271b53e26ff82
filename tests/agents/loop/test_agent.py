"""Named agents and their settings."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from envgym.agents.loop.agent import AGENT, AgentSettings, assemble, make_agent, resolve_text_format
from envgym.agents.loop.context import drop_oldest_turns, stop
from envgym.core.messages import Message, Observation, Role
from envgym.errors import UnknownName
from envgym.records import ResetRecord, first_messages
from tests.support.parrots import CharRenderer, parrot_task


def record(system_prompt: str = "World.") -> ResetRecord:
    return ResetRecord(
        task=parrot_task("Q"), observation=Observation("Q"), system_prompt=system_prompt, tools=(), seed=0
    )


def test_an_agent_is_a_choice_of_format_and_context_strategy() -> None:
    def choice(name: str, **settings: Any) -> tuple[str, object]:  # settings of AgentSettings
        made = AgentSettings.model_validate({"name": name, **settings})
        text_format = resolve_text_format(made)
        return "native" if text_format is None else text_format.name, assemble(made, CharRenderer()).context

    assert choice("plain") == ("plain", stop)
    assert choice("tool_calling") == ("native", stop)
    assert choice("react") == ("react", drop_oldest_turns)
    assert choice("code_act") == ("code_block", drop_oldest_turns)
    assert choice("react", text_format="hermes", context="stop") == ("hermes", stop), "settings win"
    assert set(AGENT.table) == {"plain", "tool_calling", "react", "code_act"}


def test_an_unknown_agent_is_refused_with_near_names() -> None:
    with pytest.raises(UnknownName, match="did you mean tool_calling"):
        assemble(AgentSettings(name="tool_caling"), CharRenderer())


def test_the_agents_own_words_come_before_the_envs() -> None:
    agent = assemble(AgentSettings(system_prompt="Own."), CharRenderer())
    assert agent.opening(record()) == (
        Message(role=Role.SYSTEM, content="Own.\n\nWorld."),
        Message(role=Role.USER, content="Q"),
    )
    assert first_messages(record(""), "") == (Message(role=Role.USER, content="Q"),), "no empty system message"


def test_a_turn_must_leave_room_for_a_prompt() -> None:
    with pytest.raises(ValidationError, match=r"max_turn_tokens must be less than max_context_tokens \(64\), got 64"):
        AgentSettings(max_turn_tokens=64, max_context_tokens=64)
    with pytest.raises(ValidationError, match="Extra inputs"):
        AgentSettings.model_validate({"max_tokens": 3})


@pytest.mark.parametrize("name", AGENT.table)
def test_every_agent_is_made_for_a_real_tokenizer(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from envgym.agents.models.loading import load_tokenizer, resolve_model

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tokenizer = load_tokenizer(resolve_model("tiny"))
    agent = make_agent(AgentSettings(name=name), tokenizer)
    rendering = agent.start(agent.opening(record()), ())
    ids = [token for segment in rendering.segments for token in segment.token_ids]
    assert "World." in tokenizer.decode(ids)
    assert all(len(segment.token_strings) == len(segment) for segment in rendering.segments)
    assert agent.renderer.stop_token_ids
