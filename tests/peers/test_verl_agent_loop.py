"""verl's own classes run the agent loop of the example: its rows are read, its tokens are those that were sampled."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import trl
from transformers import PreTrainedTokenizerFast

import envgym
from envgym.agents.models.tiny import tiny_tokenizer
from envgym.cli.main import main
from envgym.core.turns import Scored
from envgym.played import PlayedEpisode
from tests.peers.conftest import _verl
from tests.support.pages import ROOT

pytestmark = pytest.mark.peers
PROMPT_LENGTH, RESPONSE_LENGTH = 2048, 1024


class OracleServer:
    """Samples the oracle's next action in place of a model's tokens; the rest of verl's client is not used."""

    episode: PlayedEpisode
    most_tokens: int | None = None
    """Of a reply; verl's servers end one at the length of a response."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self.calls: list[tuple[list[int], list[int]]] = []
        """Prompt and reply of each call."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        assert sampling_params == {"temperature": 1.0}
        text = f"{self.episode.oracle()}<|im_end|>"
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"][: self.most_tokens]
        self.calls.append((list(prompt_ids), ids))
        steps = {"min_global_steps": len(self.calls), "max_global_steps": len(self.calls)}
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), extra_fields=steps)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text("utf-8")
    return tokenizer


def read_rows(path: Path, tokenizer: PreTrainedTokenizerFast) -> Any:
    """Return the rows as verl's data set gives them to its loop."""
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    config = {"cache_dir": str(path.parent / "cache"), "max_prompt_length": 512, "filter_overlong_prompts_workers": 1}
    return RLHFDataset(str(path), tokenizer, OmegaConf.create(config))


def make_loop(server: OracleServer, tokenizer: PreTrainedTokenizerFast, response_length: int) -> Any:
    """Make the loop of the example as verl's worker does."""
    import hydra
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap

    rollout = {"prompt_length": PROMPT_LENGTH, "response_length": response_length}
    loop = hydra.utils.instantiate(
        config={"_target_": "connect_verl.EnvgymAgentLoop"},
        trainer_config=DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})),
        server_manager=server,
        tokenizer=tokenizer,
        processor=None,
        hf_model_type="qwen3",
        dataset_cls=None,
        data_config=DictConfigWrap(OmegaConf.create({})),
        tools=ToolListWrap([]),
    )
    play = loop._play

    async def shown_play(episode: PlayedEpisode, *args: Any) -> Any:
        server.episode = episode
        return await play(episode, *args)

    loop._play = shown_play
    return loop


@pytest.fixture
def run(tmp_path: Path, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that plays the first rows of an environment, as our command writes them."""
    _verl("verl.experimental.agent_loop.agent_loop")
    monkeypatch.syspath_prepend(ROOT / "examples")

    def ran(env_id: str, count: int, response_length: int = RESPONSE_LENGTH) -> list[tuple[Any, Any, OracleServer]]:
        path = tmp_path / "train.parquet"
        assert main(["connect", "verl", env_id, "--rows", str(count), "--out", str(path), "--overwrite"]) == 0

        async def play_all() -> list[tuple[Any, Any, OracleServer]]:
            played = []
            for row in read_rows(path, tokenizer):
                server = OracleServer(tokenizer)
                loop = make_loop(server, tokenizer, response_length)
                played.append((row, await loop.run({"temperature": 1.0}, **row), server))
            return played

        return asyncio.run(play_all())

    return ran


@pytest.mark.parametrize("env_id", ["tests.support.toys:Counter", "math/arithmetic-v0"])
def test_sampled_tokens_train_and_the_reward_is_that_of_the_environment(
    env_id: str, run: Any, tokenizer: PreTrainedTokenizerFast
) -> None:
    for row, output, server in run(env_id, 3):
        task = row["extra_info"]
        assert (row["agent_name"], row["reward_model"]["ground_truth"]) == ("envgym", "")
        assert output.prompt_ids == server.calls[0][0]
        assert tokenizer.decode(output.prompt_ids).count(row["raw_prompt"][-1]["content"]) == 1
        sampled = [token for _, reply in server.calls for token in reply]
        trained = [token for token, bit in zip(output.response_ids, output.response_mask, strict=True) if bit]
        assert trained == sampled
        assert output.response_logprobs == [-0.5 * bit for bit in output.response_mask]
        for prompt, reply in server.calls:  # each call went on from the tokens before it
            assert (output.prompt_ids + output.response_ids)[: len(prompt) + len(reply)] == prompt + reply
        env = envgym.make(env_id)
        env.reset(seed=task["seed"], options={"split": task["split"], "index": task["index"]})
        rewards = []
        while True:
            result = env.step(env.unwrapped.oracle())
            assert isinstance(result.info["envgym"].reward, Scored)
            rewards.append(result.reward)
            if result.terminated or result.truncated:
                break
        assert (output.reward_score, output.extra_fields["turn_scores"]) == (sum(rewards), rewards)
        assert output.num_turns == 2 * len(rewards) == 2 * len(server.calls)
        steps = [output.extra_fields[name] for name in ("min_global_steps", "max_global_steps")]
        assert steps == [1, len(server.calls)]
        assert output.as_dict()["rm_scores"].sum().item() == output.reward_score


def test_the_observations_are_rendered_as_by_the_chat_template(run: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    ((row, _, server),) = run("math/arithmetic-v0", 1)
    assert len(server.calls) == 2
    env = envgym.make("math/arithmetic-v0")
    task = row["extra_info"]
    env.reset(seed=task["seed"], options={"split": task["split"], "index": task["index"]})
    shown = str(env.step(env.unwrapped.oracle()).observation)
    between = str(tokenizer.decode(server.calls[1][0][len(server.calls[0][0]) + len(server.calls[0][1]) :]))
    assert between.startswith(f"\n<|im_start|>user\n<tool_response>\n{shown}\n</tool_response><|im_end|>")
    assert between.rstrip().endswith(("<|im_start|>assistant", "</think>"))


def test_a_reply_beyond_the_limit_ends_the_episode_with_the_rewards_so_far(run: Any) -> None:
    ((_, output, server),) = run("tests.support.toys:Counter", 1, response_length=10)
    assert (len(server.calls), len(output.response_ids), output.response_mask) == (1, 10, [1] * 10)
    assert output.reward_score == 0.0


def test_a_reply_that_the_server_cuts_at_the_limit_is_not_played(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ((_, _, server),) = run("tests.support.toys:Sums", 1)
    size = len(server.calls[0][1])
    for limit, scores in ((size, [1.0]), (size - 1, [])):
        monkeypatch.setattr(OracleServer, "most_tokens", limit)
        ((_, output, _),) = run("tests.support.toys:Sums", 1, response_length=limit)
        assert (len(output.response_ids), output.extra_fields["turn_scores"]) == (limit, scores)


def test_an_invalid_reward_is_raised_and_never_zero(run: Any) -> None:
    with pytest.raises(RuntimeError, match=r"no valid reward: .*the service is down"):
        run("tests.support.toys:Down", 1)
