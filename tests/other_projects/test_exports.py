"""TRL trains on exported runs: SFT on chats and tokens, DPO on the preferences of a tree search."""

import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import trl
from datasets import Dataset, load_dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from envgym import Message, Observation, Role, Scored, Split, Task, ToolCall
from envgym.agents.models.tiny import tiny_tokenizer
from envgym.cli.main import main
from envgym.core.builder import TreeBuilder
from envgym.core.tree import Edge, Tree
from envgym.core.turns import Ending, TurnOutcome
from envgym.trainer.train import train
from tests.support.example_trees import policy, prompt
from tests.support.recorded_runs import TOOLS, acted, assistant, recorded_run, user
from tests.support.tiny_runs import tiny_settings

pytestmark = pytest.mark.connect
COMMON: dict[str, Any] = {
    "max_steps": 1,
    "per_device_train_batch_size": 2,
    "max_length": 128,
    "use_cpu": True,
    "report_to": [],
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of one step of a tree search that forks after the first turn."""
    path = tmp_path_factory.mktemp("searched") / "run"
    search = {"name": "planned", "trees": 2, "turns": [1], "children": [2]}
    train(tiny_settings(path, run={"steps": 1}, search=search, rollout={"groups": 8}))
    return path


def episode_with_tools() -> Tree:
    task = Task(id="train/0", prompt="Add.", payload={"number": 0}, split=Split.TRAIN)
    tree = TreeBuilder(id="step-000001/000/00", env_id="math/arithmetic-v0", task=task, seed=1, prompt=[prompt(1)])
    call = ToolCall(name="add", arguments={"a": 2, "b": {"c": "text"}}, id="c0")
    result = Message(role=Role.TOOL, content="4", tool_call_id="c0", name="add")
    asked = TurnOutcome(
        action=acted(assistant("", tool_calls=(call,))), observation=Observation.of([result]), reward=Scored(value=0.0)
    )
    edge = Edge(segments=(policy(10, 11),), ends_turn=True)
    node = tree.add(tree.root, edge, outcome=asked)
    said = TurnOutcome(action=acted(assistant("It is 4.")), observation=Observation(), reward=Scored(value=1.0))
    tree.add(node, edge, outcome=said, ending=Ending.TERMINATED)
    return tree.freeze(messages=(user("What is 2 + 2?"),), tools=TOOLS)


def exported(run: Path, kind: str, out: Path, *options: str) -> Dataset:
    assert main(["export", str(run), kind, str(out), *options]) == 0
    return load_dataset("parquet", data_files=str(out / "data" / "train.parquet"), cache_dir=str(out.parent / "cache"))[
        "train"
    ]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text("utf-8")
    return tokenizer


def tiny_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=384,  # also those that a run can sample beyond the tokenizer
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():  # of the libraries
        warnings.simplefilter("ignore")
        yield


def losses(trainer: Any) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_chats_with_tools_are_one_step_of_supervised_training(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    run = recorded_run(tmp_path / "run", [episode_with_tools()]).path
    data = exported(run, "chat", tmp_path / "out")
    trainer = SFTTrainer(
        model=tiny_model(tokenizer),
        args=SFTConfig(output_dir=str(tmp_path / "sft"), **{**COMMON, "max_length": None}),
        train_dataset=data,
        processing_class=tokenizer,
    )
    text = tokenizer.decode(trainer.train_dataset[0]["input_ids"])
    assert '{"name": "add", "arguments": {"a": 2, "b": {"c": "text"}}}' in text
    assert '"description": "Add."' in text
    assert "None" not in text
    assert losses(trainer)[0] > 0


def test_tokens_train_where_the_policy_sampled(
    searched: Path, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    data = exported(searched, "tokens", tmp_path / "out")
    sampled = [sum(row["loss_mask"]) for row in data]
    trainer = SFTTrainer(
        model=tiny_model(tokenizer),
        args=SFTConfig(output_dir=str(tmp_path / "sft"), **COMMON),
        train_dataset=data,
        processing_class=tokenizer,
    )
    labels = [row["labels"] for row in trainer.train_dataset]
    assert [sum(label != -100 for label in row) for row in labels] == sampled
    assert losses(trainer)[0] > 0


@pytest.mark.parametrize("span", ["episode", "turn"])
def test_preferences_of_a_tree_search_are_one_step_of_dpo(
    span: str, searched: Path, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    data = exported(searched, "preferences", tmp_path / "out", "--span", span)
    assert {0, 1} == set(data["turn"]), "siblings of a group, and of a fork after the first turn"
    model = tiny_model(tokenizer)
    trainer = DPOTrainer(
        model=model,
        ref_model=deepcopy(model),
        args=DPOConfig(output_dir=str(tmp_path / "dpo"), **COMMON),
        train_dataset=data,
        processing_class=tokenizer,
    )
    assert losses(trainer) == pytest.approx([0.6931], abs=1e-3)  # log 2: policy and reference are equal before it
