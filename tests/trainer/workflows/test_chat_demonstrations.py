"""Chat data as demonstrations: the tokens, masks and limits of training, in every form and file format."""

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.loop.agent import Agent, AgentSettings, make_agent
from envgym.agents.models.tiny import END, tiny_tokenizer
from envgym.chats.rows import ChatForm
from envgym.cli.batch_view import print_dry_run
from envgym.config.plugins import Choice
from envgym.core.segments import Origin
from envgym.core.trajectory import Trajectory
from envgym.core.turns import Scored
from envgym.errors import InvalidInput, SettingsError
from envgym.runtime.event_loop import run_coroutine
from envgym.trainer.methods.protocols import CURRICULUM
from envgym.trainer.phases import dry_runs
from envgym.trainer.train import train
from envgym.trainer.workflows.chat_demonstrations import ChatDemonstrations
from envgym.trainer.workflows.demonstrations import DEMONSTRATIONS, DemonstrationRequest, Demonstrations
from envgym.trainer.workflows.sft import likelihood_rows
from tests.support.marked_template import marked_template
from tests.support.parrots import CharRenderer, char_agent
from tests.support.tiny_runs import tiny_settings

Row = dict[str, Any]
ADD = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALLS: Row = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Add 2 and 3."},
        {"role": "assistant", "reasoning_content": "A sum.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
        {"role": "assistant", "content": "5."},
        {"role": "user", "content": f"Thanks {END}"},
        {"role": "assistant", "content": f"Say {END} never."},
    ],
    "tools": [{"type": "function", "function": ADD}],
}  # fmt: skip
TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


def tool_agent(**settings: Any) -> Agent:
    return make_agent(AgentSettings(**settings), tiny_tokenizer())


def write(path: Path, *rows: Row) -> Path:
    """Write rows in the format that the path's ending names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as lines:
            writer = csv.writer(lines)
            writer.writerow(rows[0])
            writer.writerows([json.dumps(cell) for cell in row.values()] for row in rows)
    else:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


REQUEST = DemonstrationRequest(
    num_episodes=1,
    success_at=1.0,
    seed=0,
    agent=tool_agent(),
    env_sources={},
    curriculum=CURRICULUM.build(Choice(name="uniform")),
    on_progress=lambda *_: None,
)


def play(path: Path, agent: Agent | None = None, **settings: Any) -> Demonstrations:
    request = replace(REQUEST, agent=agent or tool_agent())
    return run_coroutine(ChatDemonstrations(path=str(path), **settings)(request))


def tokens(demonstrations: Demonstrations) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
    return [(row.token_ids, row.loss_mask) for episode in demonstrations.imitated for row in episode.rows]


def trained_text(episode: Trajectory) -> list[str]:
    segments = [segment for row in episode.rows for segment in row.segments if segment.origin is Origin.POLICY]
    return ["".join(segment.token_strings) for segment in segments]


# ---- tokens and masks ------------------------------------------------------------------------------------------------


def test_assistant_tokens_are_those_that_transformers_marks(tmp_path: Path) -> None:
    clean = json.loads(json.dumps(CALLS).replace(END, "(end)"))
    (episode,) = play(write(tmp_path / "chats.jsonl", clean)).imitated
    for message in clean["messages"]:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    encoded: Any = tiny_tokenizer().apply_chat_template(
        clean["messages"],
        tools=clean["tools"],
        chat_template=marked_template(),
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    (row,) = episode.rows
    assert [*row.token_ids, *tiny_tokenizer().encode("\n")] == encoded["input_ids"]
    assert [*map(int, row.loss_mask), 0] == encoded["assistant_masks"]
    assert sum(row.loss_mask) > 20


def test_control_tokens_inside_texts_are_text(tmp_path: Path) -> None:
    (episode,) = play(write(tmp_path / "chats.jsonl", CALLS)).imitated
    (row,) = episode.rows
    end = tiny_tokenizer().convert_tokens_to_ids(END)
    assert row.token_ids.count(end) == len(CALLS["messages"])  # one closes each message
    text = tiny_tokenizer().decode([*row.token_ids])
    assert text.count(END) == len(CALLS["messages"]) + 2
    assert trained_text(episode)[-1] == f"Say {END} never.{END}"


@pytest.mark.parametrize("train_on, trained", [("all", ["Ho", "No"]), ("last", ["No"])])
def test_messages_that_must_not_train_are_context(tmp_path: Path, train_on: str, trained: list[str]) -> None:
    middle = {"role": "assistant", "content": "Hm", "weight": 0}
    last = [TURNS[0], {"role": "assistant", "content": "No"}]
    row = {"messages": [*TURNS, TURNS[0], middle, *last]}
    (episode,) = play(write(tmp_path / "chats.jsonl", row), train_on=train_on).imitated
    assert trained_text(episode) == [f"{text}{END}" for text in trained]
    context = [segment for row in episode.rows for segment in row.segments if segment.origin is Origin.INJECTED]
    assert len(context) == 3 - len(trained)
    everything = {"messages": [*TURNS, TURNS[0], {**middle, "weight": 1}, *last]}
    (whole,) = play(write(tmp_path / "all.jsonl", everything)).imitated
    assert [row.token_ids for row in whole.rows] == [row.token_ids for row in episode.rows]


def test_a_template_that_drops_thinking_begins_another_row(tmp_path: Path) -> None:
    agent = char_agent(CharRenderer(drops_thinking=True))
    thinking = {"role": "assistant", "content": "Ho", "reasoning_content": "Hm."}
    (episode,) = play(write(tmp_path / "chats.jsonl", {"messages": [TURNS[0], thinking] * 2}), agent).imitated
    assert len(episode.rows) == 2
    assert [text.count("Hm.") for text in trained_text(episode)] == [1, 1]
    assert sum(map(len, map(likelihood_rows, [episode]))) == 2


# ---- files and columns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["json", "csv", "parquet"])
def test_file_formats_give_the_same_tokens(tmp_path: Path, ending: str) -> None:
    lines = play(write(tmp_path / "chats.jsonl", CALLS, CALLS))
    assert tokens(play(write(tmp_path / f"chats.{ending}", CALLS, CALLS))) == tokens(lines)


def test_rows_of_parquet_that_differ_in_their_calls_are_read(tmp_path: Path) -> None:
    """Parquet fills the arguments of every call with the keys of the calls of other rows."""
    other = json.loads(json.dumps(CALLS).replace('{\\"a\\": 2, \\"b\\": 3}', '{\\"c\\": \\"x\\"}'))
    rows = [json.loads(json.dumps(row)) for row in (CALLS, other, {"messages": TURNS, "tools": None})]
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in ("a", "b", "c")}}
    for row in rows[:2]:
        row["tools"][0]["function"]["parameters"] = schema
        for call in row["messages"][2]["tool_calls"]:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    assert tokens(play(write(tmp_path / "a.parquet", *rows))) == tokens(play(write(tmp_path / "a.jsonl", *rows)))


def test_a_saved_data_set_has_splits(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    tables = {
        name: datasets.Dataset.from_list([{"messages": TURNS}] * size) for name, size in (("train", 2), ("dev", 1))
    }
    datasets.DatasetDict(tables).save_to_disk(str(tmp_path / "chats"))
    assert len(play(tmp_path / "chats").imitated) == 2
    assert len(play(tmp_path / "chats", split="dev").imitated) == 1
    with pytest.raises(InvalidInput, match="split of the chat data must be one of train, dev, got test"):
        play(tmp_path / "chats", split="test")
    with pytest.raises(InvalidInput, match="split of the chat data must be null for a file, got train"):
        play(write(tmp_path / "chats.jsonl", {"messages": TURNS}), split="train")


def test_rows_are_filtered_and_limited(tmp_path: Path) -> None:
    rows = [{"messages": TURNS, "score": score} for score in (0.1, 0.9, None, 0.8, 0.7)]
    path = write(tmp_path / "chats.jsonl", *rows)
    result = play(path, keep="score > 0.5", limit=2, columns={"reward": "score"})
    assert [episode.tree.task_id for episode in result.imitated] == ["row/1", "row/3"]
    with pytest.raises(InvalidInput, match=r"chat data must hold conversations to learn, got none of 5 rows \(chats"):
        play(path, keep="score > 1")


def test_a_conversation_without_a_reward_has_none(tmp_path: Path) -> None:
    path = write(tmp_path / "chats.jsonl", *({"messages": TURNS, "score": score} for score in (0.0, None)))
    scored, unscored = play(path, columns={"reward": "score"}).imitated
    assert scored.reward == Scored(value=0.0, components={"reward": 0.0})
    assert (scored.has_reward, unscored.has_reward) == (True, False)
    assert "reward 0," in repr(scored)
    assert "reward none," in repr(unscored)


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_a_bad_row_refuses_the_run_or_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = {"messages": TURNS[:1]}
    path = write(tmp_path / "chats.jsonl", {"messages": TURNS}, bad, *[{"messages": TURNS[1:]}] * 4)
    with pytest.raises(InvalidInput) as refusal:
        play(path)
    assert str(refusal.value) == (
        "conversation must hold an assistant message, got roles user (row 1 of chats.jsonl); "
        "correct the row, or set on_bad_row: skip."
    )
    assert len(play(path, on_bad_row="skip").imitated) == 1
    (message,) = caplog.messages
    assert message == (
        "5 of 6 rows of chats.jsonl are skipped: first message must be of the user (4: rows 2, 3, 4 ...); "
        "conversation must hold an assistant message (1: row 1)"
    )


def test_a_line_that_is_no_json_is_a_bad_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "chats.jsonl", {"messages": TURNS}, {"messages": TURNS})
    path.write_text("{oh\n" + path.read_text())
    with pytest.raises(InvalidInput, match=r"line must be one JSON object, got '\{oh', .*\(line 1 of .*chats.jsonl\)"):
        play(path)
    assert len(play(path, on_bad_row="skip").imitated) == 2
    assert caplog.messages == ["1 of 3 rows of chats.jsonl are skipped: line must be one JSON object (1: row 0)"]


def test_a_conversation_that_the_template_cannot_write_is_a_bad_row(tmp_path: Path) -> None:
    path = write(tmp_path / "chats.jsonl", {"messages": TURNS}, CALLS)
    with pytest.raises(InvalidInput, match=r"be one that the agent can write.* \(row 1 of chats.jsonl\)"):
        play(path, tool_agent(name="plain"))
    with pytest.raises(InvalidInput, match=r"got a message whose tool_calls it cannot write \(row 1 of chats"):
        ChatDemonstrations(path=str(path)).check_agent(tool_agent(name="plain"))
    ChatDemonstrations(path=str(path)).check_agent(tool_agent())
    assert len(play(path, tool_agent(name="plain"), on_bad_row="skip").imitated) == 1


def test_a_run_without_a_conversation_that_the_agent_can_write_leaves_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "chats.jsonl", CALLS)
    source = {"name": "chat", "path": str(path), "on_bad_row": "skip"}
    settings = tiny_settings(tmp_path / "run", run={"steps": 0}, agent={"name": "plain"}, sft={"source": source})
    with pytest.raises(SettingsError, match=r"got none of 1 rows \(conversation must be .*; correct what the reasons"):
        train(settings)
    assert not (tmp_path / "run").exists()


def test_a_dry_run_plays_some_conversations_only(tmp_path: Path) -> None:
    path = write(tmp_path / "chats.jsonl", *[{"messages": TURNS}] * 5)
    request = replace(REQUEST, num_episodes=2, is_sample=True)
    assert len(run_coroutine(ChatDemonstrations(path=str(path))(request)).imitated) == 2


def test_conversations_that_do_not_fit_the_context_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "chats.jsonl", {"messages": TURNS}, CALLS)
    result = play(path, tool_agent(max_context_tokens=60, max_turn_tokens=20))
    assert (result.num_episodes, len(result.imitated), result.num_truncated) == (2, 1, 1)


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({}, r"chat data must have one of path and hub, got neither"),
        ({"path": "a.jsonl", "hub": "a/b"}, r"chat data must have one of path and hub, got both"),
        ({"path": "nowhere.jsonl"}, r"path must be an existing file or folder, got nowhere.jsonl"),
        ({"path": __file__, "revision": "v1"}, r"revision must be used with hub, got v1"),
        ({"path": __file__, "config": "main"}, r"config must be used with a data set, got main"),
        ({"hub": "a/b", "keep": "high"}, r"keep must compare a column with a number, got high"),
        ({"hub": "a/b", "form": "chatml"}, r"form"),
        ({"hub": "a/b", "columns": {"message": "x"}}, r"message"),
    ],
)
def test_settings_that_name_no_data_are_refused(settings: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        DEMONSTRATIONS.build(Choice.model_validate({"name": "chat", **settings}))


# ---- training --------------------------------------------------------------------------------------------------------

SYSTEM = "Odd or even?"
PAIRS = [(str(number), "odd" if number % 2 else "even") for number in range(64)]
FORMS: Mapping[ChatForm, list[Row]] = {
    ChatForm.OPENAI: [
        {
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        }
        for question, answer in PAIRS
    ],
    ChatForm.SHAREGPT: [
        {"system": SYSTEM, "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}
        for question, answer in PAIRS
    ],
    ChatForm.PROMPT_COMPLETION: [
        {"system": SYSTEM, "prompt": question, "completion": answer} for question, answer in PAIRS
    ],
    ChatForm.ALPACA: [
        {"system": SYSTEM, "instruction": question, "input": "", "output": answer} for question, answer in PAIRS
    ],
}


def test_sixty_four_chats_are_learned_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All forms give the same tokens, so one of them is trained on."""
    paths = {form: write(tmp_path / f"{form}.jsonl", *rows) for form, rows in FORMS.items()}
    expected = tokens(play(paths[ChatForm.OPENAI]))
    assert len(expected) == 64
    for form, path in paths.items():
        for named in (ChatForm.AUTO, form):
            assert tokens(play(path, form=named)) == expected
    source = {"name": "chat", "path": str(paths[ChatForm.SHAREGPT])}
    settings = tiny_settings(
        tmp_path / "run",
        run={"steps": 0},
        sft={"source": source, "epochs": 30, "batch_size": 16, "lr": 0.01},
    )
    print_dry_run(dry_runs([settings])[0])
    assert "row/0, no reward, TERMINATED" in capsys.readouterr().out
    train(settings)
    (metrics,) = [
        row
        for row in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
        if "sft/updates" in row
    ]
    assert metrics["sft/episodes"] == 64
    assert metrics["sft/loss_last"] < 0.05 < metrics["sft/loss_first"]
