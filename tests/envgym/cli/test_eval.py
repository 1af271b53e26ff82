"""`envgym eval`: what it measures and writes, how it goes on after a kill, and what it refuses without a trace."""

import json
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from envgym.agents.evaluation.run import JOURNAL
from envgym.core.trajectory import trajectories
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from tests.support.programs import run_program

Command = Callable[..., tuple[int, str, str]]
Files = Callable[[], Mapping[str, bytes]]
VOWELS = ("eval", "--model", "tiny", "--env", "worlds:Vowels", "--agent", "plain", "--agent-set", "on_length=close",
          "--agent-set", "max_turn_tokens=8", "--agent-set", "max_context_tokens=200", "--success-at", "0.05",
          "--out", "out")  # fmt: skip


def refused(command: Command, files: Files, *words: object) -> str:
    before = files()
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert files() == before, "nothing may be written"
    assert "Traceback" not in err
    return err.splitlines()[-1]


# ---- what it finds -----------------------------------------------------------------------------------------------


def test_evaluation_prints_what_it_found(command: Command) -> None:
    code, out, err = command(*VOWELS, "--tasks", 5, "--samples", 4)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "worlds:Vowels, held-out: 5 tasks, 4 sample(s) each, temperature 1"
    assert [line.split("  ")[0].strip() for line in lines[1:8]] == [
        "success", "k = 1", "k = 2", "k = 4", "endings", "per episode", "detectable",
    ]  # fmt: skip
    assert lines[5].split(maxsplit=1)[1] == "TERMINATED 20"
    assert re.fullmatch(r"wall time    \d+ s", lines[-2])
    assert lines[-1] == "report: out/report.html"
    assert err.splitlines()[-1].startswith("evaluate held-out: 20/20, ")


def test_json_holds_what_the_run_directory_does(command: Command, folder: Path) -> None:
    _, out, _ = command(*VOWELS, "--tasks", 5, "--samples", 2, "--json")
    (told,) = json.loads(out)["evaluations"]
    run = RunDirectory.open(folder / "out")
    (record,) = run.evals()
    solved = [[reward >= 0.05 for reward in rewards] for rewards in record["rewards"].values()]
    assert told["success"]["valid"]["value"] == pytest.approx(sum(map(sum, solved)) / 10)
    assert told["pass_rates"][1]["at_k"]["value"] == pytest.approx(sum(map(any, solved)) / 5)  # k = samples
    assert told["pass_rates"][1]["hat_k"]["value"] == pytest.approx(sum(map(all, solved)) / 5)
    assert (told["num_tasks"], told["samples_per_task"], told["env_id"]) == (5, 2, "worlds:Vowels")
    trees = trees_of(run.episodes(label="held-out"))
    assert [(tree.task_id, tree.split.value) for tree in trees] == [(f"test/{i // 2}", "test") for i in range(10)]
    assert [episode.reward.value for tree in trees for episode in trajectories(tree)] == [  # type: ignore[union-attr]
        reward for rewards in record["rewards"].values() for reward in rewards
    ]
    assert "<html" in (folder / "out/report.html").read_text()
    assert not (folder / "out" / JOURNAL).exists()


def test_minimum_detectable_effect_is_that_of_the_normal_approximation(command: Command) -> None:
    _, out, _ = command(*VOWELS, "--tasks", 4, "--json")
    (told,) = json.loads(out)["evaluations"]
    # (1.95996 + 0.84162) sqrt(2 · 0.25 / 4): two runs, p = 1/2, one sample a task
    assert told["minimum_detectable_effect"] == pytest.approx(2.80158 * (0.5 / 4) ** 0.5, rel=1e-5)


def test_one_sample_is_greedy_and_several_are_sampled_unless_told(command: Command, folder: Path) -> None:
    command(*VOWELS, "--tasks", 2)
    assert RunDirectory.open(folder / "out").evals()[0]["temperature"] == 0
    shutil.rmtree(folder / "out")
    command(*VOWELS, "--tasks", 2, "--samples", 2)
    assert RunDirectory.open(folder / "out").evals()[0]["temperature"] == 1
    shutil.rmtree(folder / "out")
    _, out, _ = command(*VOWELS, "--tasks", 2, "--samples", 2, "--temperature", 0.5)
    assert out.startswith("worlds:Vowels, held-out: 2 tasks, 2 sample(s) each, temperature 0.5")


def test_equal_seeds_give_equal_rewards_and_other_seeds_others(command: Command, folder: Path) -> None:
    found = []
    for seed in (3, 3, 4):
        command(*VOWELS, "--tasks", 4, "--samples", 2, "--seed", seed)
        found.append(RunDirectory.open(folder / "out").evals()[0]["rewards"])
        shutil.rmtree(folder / "out")
    assert found[0] == found[1] != found[2]


def test_train_split_is_evaluated_on_its_own_tasks(command: Command, folder: Path) -> None:
    _, out, _ = command(*VOWELS, "--tasks", 2, "--split", "train")
    assert out.startswith("worlds:Vowels, train-split: 2 tasks")
    assert {tree.split.value for tree in trees_of(RunDirectory.open(folder / "out").episodes())} == {"train"}


def test_invalid_episodes_are_counted_with_their_bounds(command: Command, folder: Path) -> None:
    world = folder / "worlds.py"
    world.write_text(world.read_text().replace("if self.breaks:", "if self.state.number % 3 == 0:"))
    sys.modules.pop("worlds", None)
    code, out, _ = command(*VOWELS, "--tasks", 6, "--samples", 1, "--temperature", 1)
    sys.modules.pop("worlds", None)
    assert code == 0
    record = RunDirectory.open(folder / "out").evals()[0]
    invalid = [rewards for rewards in record["rewards"].values() if rewards == [None]]
    assert 0 < len(invalid) <= 3
    assert f"invalid      {len(invalid)} of 6 episodes; counted as failures: " in out
    assert record["endings"]["ERROR_ENV"] == len(invalid)


# ---- a run's model -----------------------------------------------------------------------------------------------


def test_run_is_evaluated_with_its_newest_checkpoint_its_agent_and_its_env(command: Command, folder: Path) -> None:
    command("train", "run.yaml")
    code, out, _ = command("eval", "--model", "runs/vowels", "--tasks", 3, "--json")
    assert code == 0
    told = json.loads(out)
    assert told["directory"] == "runs/eval-vowels-step-2-worlds_Vowels"
    assert [evaluation["step"] for evaluation in told["evaluations"]] == [2]
    run = RunDirectory.open(folder / told["directory"])
    assert run.config["model"]["name"] == "runs/vowels/checkpoints/step-000002/model"
    assert run.config["agent"] == RunDirectory.open(folder / "runs/vowels").config["agent"]
    assert run.config["evaluation"]["success_at"] == 0.05


def test_what_the_run_was_told_can_be_replaced(command: Command, folder: Path) -> None:
    command("train", "run.yaml", "--set", "run.steps=1")
    words = ("--agent", "react", "--agent-set", "max_turn_tokens=10", "--env-set", "max_turns=3", "--out", "out")
    assert command("eval", "--model", "runs/vowels", "--tasks", 2, *words)[0] == 0
    config = RunDirectory.open(folder / "out").config
    assert (config["agent"]["name"], config["agent"]["max_turn_tokens"]) == ("react", 10)
    assert (config["agent"]["max_context_tokens"], config["agent"]["text_format"]) == (256, None)
    (env,) = config["envs"]
    assert (env["id"], env["settings"], env["name"]) == ("worlds:Vowels", {"max_turns": 3}, None)


def test_adapters_of_a_run_are_evaluated_on_top_of_their_model(command: Command, folder: Path) -> None:
    command("train", "run.yaml", "--set", "model.lora.rank=2", "--set", "run.steps=1", "--set", "evaluation.tasks=3",
            "--set", "evaluation.temperature=0")  # fmt: skip
    trained = RunDirectory.open(folder / "runs/vowels").evals()[-1]
    assert command("eval", "--model", "runs/vowels", "--tasks", 3, "--out", "out")[0] == 0
    run = RunDirectory.open(folder / "out")
    assert run.config["model"]["adapter"] == "runs/vowels/checkpoints/step-000001/model"
    assert run.evals()[0]["rewards"] == trained["rewards"]  # greedy, on the same tasks, with the same weights


def test_every_env_of_a_mixture_is_evaluated(command: Command) -> None:
    envs = "envs=[{id: 'worlds:Vowels', name: a}, {id: 'worlds:Vowels', name: b, settings: {max_turns: 2}}]"
    command("train", "run.yaml", "--set", "run.steps=1", "--set", envs)
    _, out, _ = command("eval", "--model", "runs/vowels", "--tasks", 2, "--out", "out", "--json")
    assert [evaluation["label"] for evaluation in json.loads(out)["evaluations"]] == ["held-out a", "held-out b"]
    _, out, _ = command("eval", "--model", "runs/vowels", "--env", "b", "--tasks", 2, "--out", "other", "--json")
    assert [evaluation["label"] for evaluation in json.loads(out)["evaluations"]] == ["held-out"]


# ---- killed and resumed ------------------------------------------------------------------------------------------

KILLER = """
import os, signal, sys
from envgym.runs.journal import Journal
from envgym.cli.main import main
from tests.support.programs import run_program

add, limit = Journal.add, int(sys.argv[1])

def deadly(self, *arguments, **named):
    add(self, *arguments, **named)
    if len(self.trees) == limit:
        with self.path.open("ab") as file:
            file.write(b'{"evaluation": "held-ou')
        os.kill(os.getpid(), signal.SIGKILL)

Journal.add = deadly
main(sys.argv[2:])
"""


@pytest.mark.slow
def test_killed_evaluation_goes_on_where_it_stopped_and_finds_the_same(command: Command, folder: Path) -> None:
    words = [*VOWELS[:-1], "killed", "--tasks", "6", "--samples", "2", "--concurrency", "2"]
    assert run_program("-c", KILLER, "5", *words).returncode == -signal.SIGKILL
    assert RunDirectory.open(folder / "killed").evals() == []
    code, _, err = command("eval", "--out", "killed", "--resume")
    assert code == 0
    assert "evaluate held-out: 12/12" in err
    command(*VOWELS, "--tasks", 6, "--samples", 2, "--concurrency", 2)
    killed, whole = RunDirectory.open(folder / "killed"), RunDirectory.open(folder / "out")
    assert killed.evals()[0]["rewards"] == whole.evals()[0]["rewards"]
    assert not (folder / "killed" / JOURNAL).exists()


def test_finished_evaluation_is_told_again_without_a_model(command: Command, folder: Path) -> None:
    _, first, _ = command(*VOWELS, "--tasks", 3, "--json")
    config = folder / "out/config.json"
    config.write_text(config.read_text().replace('"name": "tiny"', '"name": "gone"'))
    code, second, _ = command("eval", "--out", "out", "--resume", "--json", "--trust")
    assert (code, json.loads(second)) == (0, json.loads(first))


def test_stopped_evaluation_runs_invalid_episodes_again(command: Command, folder: Path) -> None:
    world = folder / "worlds.py"
    sound = world.read_text()
    world.write_text(sound.replace("if self.breaks:", "if True:"))
    sys.modules.pop("worlds", None)
    code, _, err = command(*VOWELS, "--tasks", 4)
    assert code == 2
    sentence = err.splitlines()[-1]
    assert sentence.startswith("envgym: invalid episodes must stay below 50%, got 3 of 4, such as: ")
    assert "the world is gone" in sentence
    world.write_text(sound)
    sys.modules.pop("worlds", None)
    assert command("eval", "--out", "out", "--resume")[0] == 0
    assert RunDirectory.open(folder / "out").evals()[0]["endings"] == {"TERMINATED": 4}


def test_evaluation_stops_at_the_share_of_invalid_episodes_that_was_given(command: Command) -> None:
    code, _, err = command(*VOWELS, "--tasks", 4, "--env-set", "breaks=true", "--max-invalid", 0)
    assert code == 2
    assert err.splitlines()[-1].startswith("envgym: invalid episodes must stay below 0%, got 1 of 4, such as: ")


# ---- an endpoint -------------------------------------------------------------------------------------------------


class Served(BaseHTTPRequestHandler):
    """An endpoint that says `aei` and remembers what it was asked."""

    asked: ClassVar[list[dict[str, Any]]] = []  # JSON

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        choice = {"index": 0, "message": {"role": "assistant", "content": "aei"}, "finish_reason": "stop"}
        data = json.dumps({"choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def endpoint() -> Iterator[str]:
    Served.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Served)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_served_model_is_evaluated_by_its_messages(command: Command, folder: Path, endpoint: str) -> None:
    words = ("eval", "--endpoint", endpoint, "--model", "some-model", "--env", "worlds:Vowels", "--agent", "plain")
    code, out, _ = command(*words, "--tasks", 3, "--out", "out", "--json")
    assert code == 0
    (told,) = json.loads(out)["evaluations"]
    assert told["success"]["valid"]["value"] == 1.0
    assert told["costs"]["tokens_generated"] == 3.0
    assert [body["model"] for body in Served.asked] == ["some-model"] * 3
    assert {body["temperature"] for body in Served.asked} == {0.0}
    config = RunDirectory.open(folder / "out").config
    assert (config["model"]["name"], config["engine"]["endpoint"]["base_url"]) == ("some-model", endpoint)
    assert "<html" in (folder / "out/report.html").read_text()


def test_endpoint_that_is_not_there_stops_the_evaluation(command: Command) -> None:
    words = (
        "eval",
        "--endpoint",
        "http://127.0.0.1:9/v1",
        "--model",
        "m",
        "--env",
        "worlds:Vowels",
        "--agent",
        "plain",
    )
    retries = ("--endpoint-set", "max_retries=0", "--out", "out", "--tasks", 4)
    code, _, err = command(*words, *retries)
    assert code == 2
    assert err.splitlines()[-1].startswith("envgym: invalid episodes must stay below 50%, got 3 of 4, such as: http")


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words,sentence",
    [
        (["--model", "tyni"], "model must be a known name, got 'tyni' (a model is tiny, smollm2, a directory or owner"),
        (["--env", "worlds:Vowel"], "worlds:Vowel must be defined as Vowel, got nothing (module worlds); "),
        (["--env", "math/arithmetik-v0"], "env id must be a known name, got 'math/arithmetik-v0' (registry); did you"),
        (["--env-set", "level=1"], "keyword argument must be a known name, got 'level' (worlds:Vowels); "),
        (["--env-set", "level"], "--env-set must be KEY=VALUE, got 'level' (command line); write a.b=1."),
        (["--agent", "plane"], "agent must be a known name, got 'plane' (settings); did you mean plain?"),
        (
            ["--agent-set", "max_tokens=9"],
            "settings key must be known, got agent.max_tokens (--agent-set max_tokens=9); did",
        ),
        (["--agent-set", "text_format=xml"], "text format must be a known name, got 'xml'"),
        (["--split", "tset"], "split must be a known name, got 'tset' (--split); did you mean test?"),
        (["--tasks", "0"], "evaluation.tasks must be greater than or equal to 1, got 0 (--tasks)"),
        (["--samples", "0"], "evaluation.samples must be greater than or equal to 1, got 0 (--samples)"),
        (
            ["--temperature", "-1"],
            "evaluation.temperature must be greater than or equal to 0, got -1.0 (--temperature)",
        ),
        (
            ["--precision", "float16"],
            "model.precision must be 'auto', 'float32', 'mixed' or 'bfloat16', got float16 (--precision)",
        ),
        (["--device", "tpu"], "device must be available, got tpu (settings); use cpu, cuda or auto."),
        (
            ["--endpoint-set", "timeout_s=3"],
            "--endpoint-set must be used with an endpoint, got none (envgym eval); give",
        ),
        (["--resume"], "run must be a directory, got no such directory (out); name a directory that"),
    ],
)
def test_wrong_argument_is_one_sentence(command: Command, files: Files, words: list[str], sentence: str) -> None:
    assert refused(command, files, *VOWELS, *words).startswith(f"envgym: {sentence}")


def test_model_and_env_have_to_be_named(command: Command, files: Files) -> None:
    assert refused(command, files, "eval", "--model", "tiny") == (
        "envgym: --env must be given, got nothing (envgym eval); name an environment; `envgym list` shows them."
    )
    assert refused(command, files, "eval", "--env", "worlds:Vowels") == (
        "envgym: --model must be given, got nothing (envgym eval); name a model, a model directory or a run."
    )


def test_endpoint_without_its_key_is_refused(command: Command, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    words = ("--endpoint", "http://127.0.0.1:9/v1", "--endpoint-set", "api_key_env=NO_SUCH_KEY")
    assert refused(command, files, *VOWELS, *words).startswith("envgym: environment variable must hold a key, got NO_")


def test_directory_that_is_taken_is_refused(command: Command, files: Files, folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out/notes.txt").write_text("mine")
    told = refused(command, files, *VOWELS)
    assert told.startswith(
        "envgym: run directory must be new or empty, got out (run); choose another directory with --out,"
    )


def test_resuming_another_evaluation_is_refused(command: Command, files: Files) -> None:
    command(*VOWELS, "--tasks", 2)
    assert refused(command, files, *VOWELS, "--tasks", 3, "--top-k", 5, "--resume").startswith(
        "envgym: resumed settings must be those of the run, got changes in ['evaluation.top_k'] (out); "
    )
    assert command(*VOWELS, "--tasks", 2, "--max-batch", 2, "--resume")[0] == 0  # how it is computed may change


def test_run_without_a_checkpoint_is_refused(command: Command, files: Files) -> None:
    command(*VOWELS, "--tasks", 2)
    assert refused(command, files, "eval", "--model", "out", "--out", "other") == (
        "envgym: run must hold a checkpoint, got none (out); "
        "name a training run that has saved one, or a model directory."
    )
