"""`envgym train` and `envgym sft`: what they print and leave behind, and what they refuse without a trace."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from envgym.agents.models.loading import load
from envgym.agents.models.tiny import TinySettings
from envgym.runs.directory import RunDirectory

Command = Callable[..., tuple[int, str, str]]
Files = Callable[[], Mapping[str, bytes]]


def refused(command: Command, files: Files, *words: object) -> str:
    before = files()
    code, out, err = command(*words)
    assert (code, out, files()) == (2, "", before), "nothing may be written"
    assert "Traceback" not in err
    return err.splitlines()[-1]


# ---- a run -------------------------------------------------------------------------------------------------------


def test_run_prints_before_and_after_and_where_the_report_is(command: Command, folder: Path) -> None:
    code, out, err = command("train", "run.yaml")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "held-out: success on the same 6 tasks"
    assert [line.split()[0] for line in lines[1:4]] == ["before", "after", "change"]
    assert lines[1].endswith("after 0 train steps")
    assert lines[2].endswith("after 2 train steps")
    assert lines[-1] == "report: runs/vowels/report.html"
    assert (folder / "runs/vowels/report.html").read_text().startswith("<!")
    assert [line.split()[:2] for line in err.splitlines() if line.startswith("step")] == [
        ["step", "1/2"],
        ["step", "2/2"],
    ]


def test_json_says_the_same_as_one_object(command: Command) -> None:
    code, out, _ = command("train", "run.yaml", "--json")
    told = json.loads(out)
    assert (code, told["steps"], told["directory"]) == (0, 2, "runs/vowels")
    before, after = told["evaluations"]
    assert (before["step"], after["step"], before["num_tasks"]) == (0, 2, 6)
    for evaluation in (before, after):
        interval = evaluation["success"]["valid"]["interval"]
        assert 0 <= interval["low"] <= evaluation["success"]["valid"]["value"] <= interval["high"] <= 1
    (comparison,) = told["comparisons"]
    difference = comparison["paired"]["difference"]["value"]
    assert difference == pytest.approx(comparison["after"]["value"] - comparison["before"]["value"])


def test_run_that_is_over_resumes_to_itself(command: Command, folder: Path) -> None:
    command("train", "run.yaml", "--json")
    rows = (folder / "runs/vowels/metrics.jsonl").read_bytes()
    first, second = (json.loads(command("train", of, "--resume", "--json")[1]) for of in ("run.yaml", "runs/vowels"))
    assert first == second, "with its wall time"
    assert (folder / "runs/vowels/metrics.jsonl").read_bytes() == rows


@pytest.mark.usefixtures("heeds_interrupts")
def test_stopped_run_says_how_to_go_on_whatever_was_overridden(command: Command, folder: Path) -> None:
    lines = "import os, signal\nfrom worlds import Vowels\nclass Stops(Vowels):\n    def respond(self, action):\n"
    kill = "        os.kill(os.getpid(), signal.SIGINT)\n        return super().respond(action)\n"
    (folder / "stops.py").write_text(lines + kill)
    code, _, err = command("train", "run.yaml", "--set", "envs.0.id=stops:Stops", "--set", "run.name=my cat")
    assert code == 130
    told = "interrupted; the checkpoint of step 0 is saved; continue with: envgym train 'runs/my cat' --resume"
    assert err.splitlines()[-1] == told


def test_run_directory_may_move_before_it_is_resumed(command: Command, folder: Path) -> None:
    command("train", "run.yaml")
    shutil.move(folder / "runs", folder / "elsewhere")
    code, out, _ = command("train", "elsewhere/vowels", "--resume")
    assert (code, out.splitlines()[-1]) == (0, "report: elsewhere/vowels/report.html")
    assert not (folder / "runs").exists()


def test_run_without_a_checkpoint_begins_again(command: Command, folder: Path) -> None:
    command("train", "run.yaml")
    run = RunDirectory.open(folder / "runs/vowels")
    rows = [{k: v for k, v in row.items() if not k.startswith(("time/", "speed/"))} for row in run.metrics()]
    shutil.rmtree(run.checkpoints)
    assert command("train", "run.yaml", "--resume")[0] == 0
    again = [{k: v for k, v in row.items() if not k.startswith(("time/", "speed/"))} for row in run.metrics()]
    assert again == rows


def test_override_replaces_a_setting(command: Command, folder: Path) -> None:
    command("train", "run.yaml", "--set", "run.name=short", "--set", "run.steps=1", "--set", "credit.name=rloo")
    config = RunDirectory.open(folder / "runs/short").config
    assert (config["run"]["steps"], config["credit"]) == (1, {"name": "rloo"})


# ---- the warm start alone ----------------------------------------------------------------------------------------


def test_sft_leaves_an_evaluated_checkpoint_that_a_run_can_start_from(command: Command, folder: Path) -> None:
    code, out, _ = command("sft", "run.yaml", "--set", "sft.episodes=8", "--set", "sft.lr=0.01")
    assert code == 0
    assert out.splitlines()[0].startswith("worlds:Vowels, held-out: 6 tasks, 1 sample(s) each, temperature 1")
    run = RunDirectory.open(folder / "runs/vowels-sft")
    assert [data["step"] for data in run.evals()] == [0]
    assert run.metrics()[0]["sft/episodes"] == 8
    model = "runs/vowels-sft/checkpoints/step-000000/model"
    assert command("train", "run.yaml", "--set", f"model.name={model}", "--set", "run.steps=1")[0] == 0
    assert command("train", "runs/vowels-sft", "--resume")[0] == 0


def test_sft_without_an_sft_section_is_refused(command: Command, files: Files) -> None:
    assert refused(command, files, "sft", "run.yaml") == (
        "envgym: sft must be set, got nothing (run.yaml); add an sft section, or pass --set sft.episodes=256."
    )


def test_sft_does_not_go_on_with_a_training_run(command: Command, files: Files) -> None:
    command("train", "run.yaml", "--set", "run.steps=1", "--set", "sft.episodes=4")
    assert refused(command, files, "sft", "runs/vowels", "--resume").startswith("envgym: run.steps must be 0, got 1")


# ---- looks without a run -----------------------------------------------------------------------------------------


def test_dry_run_shows_a_batch_and_writes_nothing(command: Command, files: Files) -> None:
    before = files()
    code, out, _ = command("train", "run.yaml", "--dry-run", "--set", "filter.name=keep_all")
    assert (code, files()) == (0, before)
    noise, _, *lines = out.splitlines()
    assert noise == "the rows below were sampled from random weights (model tiny): their text is noise"
    assert lines[0].startswith("row 1 of 16: train/")
    assert lines[1].split()[0] == "PROMPT"
    assert "Vowels" in lines[1]
    assert lines[2].split() == ["TEMPLATE", "<|im_start|>assistant⏎"]
    assert lines[3].split()[:2] == ["POLICY", "A"]
    assert "... and 14 more rows" in lines
    numbers = dict(line.rsplit(maxsplit=1) for line in lines if line.startswith(("groups", "episodes", "rows")))
    assert numbers == {"groups": "4", "episodes": "16", "rows": "16"}
    assert any(line.startswith("time per step") for line in lines)


def test_dry_run_as_json_counts_memory_from_the_model(command: Command) -> None:
    _, out, _ = command("train", "run.yaml", "--dry-run", "--json")
    told = json.loads(out)
    vocabulary, wide, deep = 384, 64, 64
    # embedding (tied), four attention matrices, three of the feed-forward, three norms
    parameters = vocabulary * wide + 4 * wide * wide + 3 * wide * deep + 3 * wide
    memory = told["memory_bytes"]
    assert (memory["weights"], memory["gradients"]) == (4 * parameters, 4 * parameters)
    assert memory["optimizer"] == 2 * 4 * parameters
    assert memory["total"] == sum(size for name, size in memory.items() if name != "total")
    assert told["seconds"]["step"] == pytest.approx(told["seconds"]["collect"] + told["seconds"]["learn"])
    assert told["kept_groups"] + sum(told["dropped_groups"].values()) == 4


def test_overfitting_one_batch_raises_what_was_good(command: Command, files: Files) -> None:
    before = files()
    code, out, _ = command("train", "run.yaml", "--overfit-one-batch", 5, "--json")
    assert (code, files()) == (0, before)
    points = json.loads(out)
    assert [point["updates"] for point in points] == list(range(6))
    assert points[0]["ratio_mean"] == pytest.approx(1.0, abs=1e-5)  # the sampler's own weights
    assert points[-1]["logprob_positive"] > points[0]["logprob_positive"] + 0.1
    assert points[-1]["logprob_negative"] < points[0]["logprob_negative"] - 0.1
    assert points[-1]["surrogate"] < points[0]["surrogate"]


def test_overfitting_says_which_way_it_went(command: Command) -> None:
    _, out, _ = command("train", "run.yaml", "--overfit-one-batch", 2)
    assert out.splitlines()[-1].endswith(": in the right direction")
    assert len(out.splitlines()) == 5  # names, three points, the verdict


@pytest.mark.parametrize("updates", [0, -1])
def test_overfitting_without_updates_is_refused(command: Command, files: Files, updates: int) -> None:
    text = refused(command, files, "train", "run.yaml", "--overfit-one-batch", updates)
    assert text.startswith(f"envgym: --overfit-one-batch must be at least 1, got {updates}")


def test_batch_without_a_difference_cannot_be_overfitted(command: Command, folder: Path, files: Files) -> None:
    lines = "import envgym\nfrom worlds import Vowels\nclass Indifferent(Vowels):\n    def respond(self, action):\n"
    (folder / "indifferent.py").write_text(lines + "        return envgym.Reply(reward=0.0, terminated=True)\n")
    env = "envs.0.id=indifferent:Indifferent"
    text = refused(command, files, "train", "run.yaml", "--overfit-one-batch", 1, "--set", env)
    assert text.startswith("envgym: batch must hold advantages other than 0, got none among 0 rows")


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override,sentence",
    [
        ("runn.steps=1", "settings key must be known, got runn (run.yaml, --set runn.steps=1); did you mean "),
        (
            "model.tiny.num_kv_heads=3",
            "model.tiny must be shaped so that num_kv_heads divides num_heads (num_kv_heads 3, num_heads 2), ",
        ),
        ("run.stps=1", "settings key must be known, got run.stps (--set run.stps=1); did you mean steps?"),
        ("run.steps=many", "run.steps must be a whole number, got many (--set run.steps=many); correct the value."),
        ("run", "--set must be KEY=VALUE, got 'run' (command line); write a.b=1."),
        ("recipe=grop", "recipe must be a known name, got 'grop' (--set recipe=grop); did you mean grpo"),
        ("credit.name=grop", "credit must be a known name, got 'grop' (settings); did you mean grpo"),
        ("loss.clip=1", "settings key must be known, got clip (loss ppo_clip); did you mean"),
        ("envs.0.id=math/arithmetik-v0", "env id must be a known name, got 'math/arithmetik-v0' (registry); did you "),
        ("envs.0.id=worlds:Vowel", "worlds:Vowel must be defined as Vowel, got nothing (module worlds); did you mean"),
        ("envs.0.settings.level=1", "keyword argument must be a known name, got 'level' (worlds:Vowels); "),
        ("model.name=tyni", "model must be a known name, got 'tyni' (a model is tiny, smollm2, a directory or owner/"),
        ("engine.device=cuda:99", "device must be available, got cuda:99 (settings); CUDA is not available"),
        (
            "agent.name=tool_caling",
            "agent must be a known name, got 'tool_caling' (settings); did you mean tool",
        ),
        ("agent.text_format=xml", "text format must be a known name, got 'xml'"),
        (
            "sft.source={name: recorded, directory: nowhere}",
            "run must be a directory, got no such directory (nowhere); name a directory that",
        ),
        (
            "run.trackers=[{name: wandb, project: p}]",
            "tracker wandb must have the wandb package installed, got no such package (settings); run `pip ",
        ),
    ],
)
def test_setting_that_leads_nowhere_is_one_sentence(
    command: Command, files: Files, override: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert refused(command, files, "train", "run.yaml", "--set", override).startswith(f"envgym: {sentence}")


def test_two_envs_of_one_name_are_refused(command: Command, files: Files) -> None:
    envs = "envs=[{id: 'worlds:Vowels'}, {id: 'worlds:Vowels'}]"
    assert refused(command, files, "train", "run.yaml", "--set", envs) == (
        "envgym: env name must be unique, got worlds:Vowels (envs); give one of them another `name`."
    )


@pytest.mark.parametrize("name,got", [("none.yaml", "No such file or directory"), ("bad.yaml", "expected ',' or '}'")])
def test_unreadable_file_is_one_sentence(command: Command, files: Files, folder: Path, name: str, got: str) -> None:
    (folder / "bad.yaml").write_text("run: {name: vowels\nenvs: []\n")
    text = refused(command, files, "train", name)
    assert got in text
    assert name in text


def test_directory_is_no_settings_file(command: Command, files: Files, folder: Path) -> None:
    (folder / "runs").mkdir()
    told = "envgym: settings of a run must be a YAML file, got a directory (runs); resume it with --resume"
    assert refused(command, files, "train", "runs").startswith(told)
    assert refused(command, files, "train", "runs", "--resume").startswith("envgym: run directory must hold run")


def test_run_directory_that_is_taken_is_refused(command: Command, files: Files, folder: Path) -> None:
    (folder / "runs/vowels").mkdir(parents=True)
    (folder / "runs/vowels/notes.txt").write_text("mine")
    assert refused(command, files, "train", "run.yaml") == (
        "envgym: run directory must be new or empty, got runs/vowels (run); "
        "choose another directory, continue the run with --resume (in Python: resume=True), or delete it yourself."
    )


def test_what_needs_no_model_is_refused_before_one_could_be_loaded(folder: Path) -> None:
    config = yaml.safe_load((folder / "run.yaml").read_text()) | {"run": {"name": "vowels"}, "optim": {"lr": 0.5}}
    RunDirectory.create(folder / "runs/vowels", name="vowels", config=config)
    words: tuple[list[str], ...] = (
        [],
        ["--resume"],
        ["--set", "run.name=new", "--set", "envs.0.id=maths/arithmetic-v0"],
    )
    code = "import sys\nfrom envgym.cli.main import main\n"
    code += f"print([main(['train', 'run.yaml', *more]) for more in {words}], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "[2, 2, 2] False\n"
    assert [line.split(" must ")[0] for line in done.stderr.splitlines()] == [
        "envgym: run directory",
        "envgym: resumed settings",
        "envgym: env id",
    ]


def test_resuming_another_run_is_refused_and_nothing_is_lost(command: Command, files: Files) -> None:
    command("train", "run.yaml", "--set", "run.steps=1")
    words = ("--set", "run.steps=1", "--set", "optim.lr=1.0", "--resume")
    assert refused(command, files, "train", "run.yaml", *words) == (
        "envgym: resumed settings must be those of the run, got changes in ['optim.lr'] (runs/vowels); resume with its "
        "own, or start another run; only run.steps, run.checkpoint_every, run.keep_checkpoints, run.keep_best, "
        "run.keep_best_mode, run.save_episodes_every, run.max_invalid_rate, run.trackers, evaluation.every, launch "
        "may change."
    )


def test_resuming_a_run_that_is_misspelled_names_the_near_one(command: Command, files: Files, folder: Path) -> None:
    RunDirectory.create(folder / "runs/first", name="first", config={})
    for words in (("train", "runs/frist", "--resume"), ("view", "runs/frist")):
        assert refused(command, files, *words) == (
            "envgym: run must be a directory, got no such directory (runs/frist); did you mean runs/first?"
        )
    missing = refused(command, files, "train", "none.yaml", "--resume")
    assert missing.startswith("envgym: settings file must be readable")


def test_resuming_what_never_began_is_refused(command: Command, files: Files) -> None:
    assert refused(command, files, "train", "run.yaml", "--resume").startswith(
        "envgym: run must be a directory, got no such directory (runs/vowels); name a directory that"
    )


def test_checkpoint_cut_short_is_passed_over(command: Command, folder: Path) -> None:
    command("train", "run.yaml")
    run = RunDirectory.open(folder / "runs/vowels")
    last = run.checkpoints / "step-000002"
    last.rename(run.checkpoints / ".step-000002.123")  # a crash before the rename leaves this
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "loss')
    assert command("train", "run.yaml", "--resume")[0] == 0
    assert [row["step"] for row in run.metrics()] == [1, 2]
    assert last.exists()


def test_model_without_a_chat_template_and_an_end_is_refused(command: Command, files: Files, folder: Path) -> None:
    loaded = load("tiny", tiny=TinySettings(hidden_size=64, num_layers=1, num_heads=2, num_kv_heads=2))
    loaded.tokenizer.chat_template = None
    loaded.tokenizer.eos_token = None
    loaded.model.save_pretrained(folder / "bare")
    loaded.tokenizer.save_pretrained(folder / "bare")
    assert refused(command, files, "train", "run.yaml", "--set", "model.name=bare").startswith(
        "envgym: chat template must exist, got none (bare); "
    )


def test_folder_that_is_no_model_is_refused(command: Command, files: Files, folder: Path) -> None:
    (folder / "empty").mkdir()
    assert refused(command, files, "train", "run.yaml", "--set", "model.name=empty") == (
        "envgym: model directory must hold config.json, got none (empty); "
        "name the directory that save_pretrained wrote."
    )


def test_world_that_breaks_stops_the_run_and_says_why(command: Command, folder: Path) -> None:
    code, _, err = command("train", "run.yaml", "--set", "envs.0.settings.breaks=true")
    assert code == 2
    (sentence,) = [line for line in err.splitlines() if line.startswith("envgym: ")]
    assert sentence.startswith("envgym: invalid episodes must stay below 50%, got 16 of 16, such as: ")
    assert "the world is gone" in sentence
    assert "(step 1)" in sentence
    run = RunDirectory.open(folder / "runs/vowels")
    assert [data["rewards"] for data in run.evals()] == [{f"test/{i}": [None] for i in range(6)}]


def test_settings_of_a_run_are_complete_and_start_it_again(command: Command, folder: Path) -> None:
    command("train", "run.yaml", "--set", "run.steps=1")
    config: dict[str, Any] = RunDirectory.open(folder / "runs/vowels").config  # a YAML tree
    (folder / "again.yaml").write_text(yaml.safe_dump(config | {"run": config["run"] | {"directory": "runs/again"}}))
    assert command("train", "again.yaml")[0] == 0
    first, again = (RunDirectory.open(folder / "runs" / name).metrics()[0] for name in ("vowels", "again"))
    assert first["loss/entropy"] == again["loss/entropy"]


def test_warm_start_that_limits_refuse_leaves_nothing_and_can_be_begun_again(command: Command, files: Files) -> None:
    values = ("sft.episodes=8", "agent.max_turn_tokens=2", "agent.on_length=truncate")
    words = [word for value in values for word in ("--set", value)]
    for _ in range(2):
        assert "max_turn_tokens must hold the turns of the demonstrations, got 2" in refused(
            command, files, "train", "run.yaml", *words
        )


def test_resumed_run_stays_if_its_settings_fail(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ("sft.episodes=8", "agent.max_turn_tokens=2", "agent.on_length=truncate")
    with monkeypatch.context() as patch:
        patch.setattr("envgym.trainer.train.warm_start", interrupted)
        assert command("train", "run.yaml", *(word for value in values for word in ("--set", value)))[0] == 130
    code, _, err = command("train", "runs/vowels", "--resume")
    assert (code, "must hold the turns of the demonstrations" in err) == (2, True)
    assert (folder / "runs/vowels/config.json").exists()


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
