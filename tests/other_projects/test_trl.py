"""TRL's own trainer plays our environments: its tools are theirs, and its rewards are those of the episodes."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from envgym.agents.models.tiny import tiny_tokenizer
from envgym.cli.main import main
from envgym.connect.trl import TrlEnvironment, TrlFactory, environment
from envgym.core.turns import Scored
from envgym.parsing import parse_action
from tests.support.pages import program_of_the_page

pytestmark = pytest.mark.connect
NUM_TASKS, GENERATIONS, STEPS = 2, 2, 2


class OracleTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL has no types
    """Samples the oracle's next action in place of the model's tokens; everything else is TRL's own."""

    def _generate_single_turn(self, prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        if len(prompt_ids) == len(self.environments):
            self.first_prompts = [list(ids) for ids in prompt_ids]
        replies = []
        for ids in prompt_ids:
            number = max(i for i, first in enumerate(self.first_prompts) if ids[: len(first)] == first)
            text = f"{_oracle_reply(self.environments[number])}<|im_end|>"
            replies.append(self.processing_class(text, add_special_tokens=False)["input_ids"])
        return replies, None

    def _calculate_rewards(self, *args: Any, **options: Any) -> Any:  # a tensor
        seen = [env._episode.result() for env in self.environments]
        rewards = super()._calculate_rewards(*args, **options)
        self.all_seen = [*getattr(self, "all_seen", []), (seen, rewards.flatten().tolist())]
        return rewards


def _oracle_reply(env: TrlEnvironment) -> str:
    if env._episode.result().ending is not None:
        return "Done."
    action = env._episode.oracle()
    calls = parse_action(action).tool_calls
    name, arguments = (calls[0].name, calls[0].arguments) if calls else ("say", {"text": action})
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': dict(arguments)})}\n</tool_call>"


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text("utf-8")
    return tokenizer


def tiny_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=8192,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def train(factory: TrlFactory, tokenizer: PreTrainedTokenizerFast, folder: Path, trainer: Any = OracleTrainer) -> Any:
    settings = GRPOConfig(
        output_dir=str(folder),
        max_steps=STEPS,
        num_generations=GENERATIONS,
        per_device_train_batch_size=NUM_TASKS * GENERATIONS,
        max_completion_length=6000 if trainer is OracleTrainer else 24,
        max_tool_calling_iterations=40,
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    run = trainer(
        model=tiny_model(tokenizer),
        args=settings,
        processing_class=tokenizer,
        train_dataset=factory.dataset(NUM_TASKS),
        environment_factory=factory,
    )
    run.train()
    return run


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    with warnings.catch_warnings():  # of the libraries
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(
    "env_id, column", [("puzzles/guess_number-v0", "GuessNumber"), ("tests.support.toys:Sums", "Sums")]
)
def test_the_oracle_is_paid_in_full_on_a_tool_env_and_on_a_plain_one(
    env_id: str, column: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    factory = environment(env_id)
    run = train(factory, tokenizer, tmp_path)
    factory.close()
    assert run.state.global_step == STEPS
    assert run.reward_func_names == [column]
    assert len(run.all_seen) == STEPS
    for results, rewards in run.all_seen:
        assert [result.reward.value for result in results] == rewards == [1.0] * len(rewards)
        assert {result.ending for result in results} == {"TERMINATED"}
    (logged, *_) = [row for row in run.state.log_history if f"rewards/{column}/mean" in row]
    assert logged[f"rewards/{column}/mean"] == 1.0
    assert logged["tools/call_frequency"] >= 1.0
    assert logged["tools/failure_frequency"] == 0.0


def test_episodes_without_a_valid_reward_are_left_out(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    factory = environment("tests.support.toys:OftenBroken")
    run = train(factory, tokenizer, tmp_path)
    factory.close()
    for results, rewards in run.all_seen:
        for result, reward in zip(results, rewards, strict=True):
            is_valid = isinstance(result.reward, Scored)
            assert reward == 1.0 if is_valid else reward != reward, "NaN is what TRL leaves out"
    means = [row["rewards/OftenBroken/mean"] for row in run.state.log_history if "rewards/OftenBroken/mean" in row]
    assert means == [1.0] * STEPS


def test_a_model_that_writes_anything_is_trained(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    factory = environment("puzzles/guess_number-v0")
    run = train(factory, tokenizer, tmp_path, trainer=GRPOTrainer)
    factory.close()
    assert run.state.global_step == STEPS


@pytest.mark.parametrize("is_printed", [False, True], ids=["page", "command"])
def test_the_program_of_the_page_and_that_of_the_command_run(
    is_printed: bool,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text = program_of_the_page("trl")
    if is_printed:
        assert main(["connect", "trl", "math/arithmetic-v0", "--set", "level=2"]) == 0
        text = capsys.readouterr().out
    for shown, small in (
        ('model="Qwen/Qwen3-0.6B"', "model=model, processing_class=tokenizer"),
        ("max_steps=50", "max_steps=1, use_cpu=True, report_to=[], save_strategy='no', disable_tqdm=True"),
        ("max_completion_length=2048", "max_completion_length=16"),
    ):
        assert shown in text
        text = text.replace(shown, small)
    names: dict[str, Any] = {"model": tiny_model(tokenizer), "tokenizer": tokenizer}
    exec(text, names)
    assert names["trainer"].state.global_step == 1
