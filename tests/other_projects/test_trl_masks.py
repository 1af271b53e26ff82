"""The tokens of a chat that train are those of TRL's supervised trainer with `assistant_only_loss`."""

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trl
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from envgym.agents.loop.agent import Agent, AgentSettings, make_agent
from envgym.agents.models.tiny import tiny_tokenizer
from envgym.config.plugins import Choice
from envgym.runtime.event_loop import run_coroutine
from envgym.trainer.methods.protocols import CURRICULUM
from envgym.trainer.workflows.chat_demonstrations import ChatDemonstrations
from envgym.trainer.workflows.demonstrations import DemonstrationRequest
from tests.support.marked_template import marked_template

pytestmark = pytest.mark.connect
Row = dict[str, Any]
Labelled = list[tuple[int, bool]]
"""Token and whether it trains, in order."""
ADD = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
ASK, THANK = {"role": "user", "content": "Add 2 and 3."}, {"role": "user", "content": "Thanks."}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
ROWS: list[Row] = [
    {"messages": [ASK, {"role": "assistant", "content": "5"}]},
    {"messages": [{"role": "system", "content": "Be brief."}, ASK, {"role": "assistant", "content": "a\n\nb"}]},
    {
        "messages": [
            ASK,
            {"role": "assistant", "content": "5"},
            THANK,
            {"role": "assistant", "content": "You are welcome."},
        ]
    },
    {
        "messages": [
            ASK,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "5"},
            {"role": "assistant", "content": "It is 5."},
        ],
        "tools": [{"type": "function", "function": ADD}],
    },
]


def ours(agent: Agent, row: Row, folder: Path) -> Labelled:
    (folder / "chats.jsonl").write_text(json.dumps(row), encoding="utf-8")
    source = ChatDemonstrations(path=str(folder / "chats.jsonl"))
    (episode,) = run_coroutine(source(replace(REQUEST, agent=agent))).imitated
    (only,) = episode.rows
    return list(zip(only.token_ids, only.loss_mask, strict=True))


REQUEST = DemonstrationRequest(
    num_episodes=1,
    success_at=1.0,
    seed=0,
    agent=make_agent(AgentSettings(), tiny_tokenizer()),
    env_sources={},
    curriculum=CURRICULUM.build(Choice(name="uniform")),
    on_progress=lambda *_: None,
)


def trls(tokenizer: PreTrainedTokenizerFast, row: Row, folder: Path) -> Labelled:
    settings = SFTConfig(
        output_dir=str(folder),
        assistant_only_loss=True,
        max_length=None,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
        )
    )
    trainer = SFTTrainer(model=model, args=settings, processing_class=tokenizer, train_dataset=Dataset.from_list([row]))
    example = trainer.train_dataset[0]
    return [(token, label != -100) for token, label in zip(example["input_ids"], example["labels"], strict=True)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():  # of the libraries
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("row", ROWS, ids=["one turn", "system", "two turns", "tool"])
@pytest.mark.parametrize("name", ["", "qwen3_instruct_2507_training"])
def test_assistant_tokens_are_those_of_trl(name: str, row: Row, tmp_path: Path) -> None:
    """TRL's own templates also mark the line break after the end of a turn, which a policy never samples."""
    tokenizer = tiny_tokenizer()
    folder = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (folder / f"{name}.jinja").read_text("utf-8") if name else marked_template()
    agent = make_agent(AgentSettings(max_context_tokens=4096, thinking=False), tokenizer)
    theirs = trls(tokenizer, row, tmp_path)
    (line_break,), end = tokenizer.encode("\n"), tokenizer.convert_tokens_to_ids("<|im_end|>")
    before = [(0, False), *theirs]
    expected = [
        (token, trains and (token, last) != (line_break, end))
        for (token, trains), (last, _) in zip(theirs, before, strict=False)
    ]
    assert [*ours(agent, row, tmp_path), (line_break, False)] == expected
    num_breaks = sum(trains for _, trains in theirs) - sum(trains for _, trains in expected)
    num_replies = sum(message["role"] == "assistant" for message in row["messages"])
    assert num_breaks == (num_replies if name else 0)
    assert sum(trains for _, trains in expected) > num_replies
