"""What a run says in which no train step updated the policy: why, and what to change."""

from collections.abc import Callable
from pathlib import Path

import pytest

from envgym.cli.results import print_untrained
from envgym.runs import RunDirectory

RAISE = "raise agent.max_turn_tokens or agent.max_context_tokens"
Command = Callable[..., tuple[int, str, str]]


def test_run_that_trained_nothing_says_so(command: Command, folder: Path) -> None:
    lines = "import envgym\nfrom worlds import Vowels\nclass Same(Vowels):\n    def respond(self, action):\n"
    (folder / "same.py").write_text(lines + "        return envgym.Reply(reward=0.0, terminated=True)\n")
    few = ("run.steps=1", "rollout={groups: 1, group_size: 2}", "evaluation.tasks=1", "agent.max_turn_tokens=2")
    code, out, _ = command(
        "train", "run.yaml", *(word for key in ("envs.0.id=same:Same", *few) for word in ("--set", key))
    )
    told = (
        "no train step updated the policy: every group was dropped (zero reward variance); the episodes of a group had "
        "the same reward, 0 on average: choose easier tasks, add a warm start (an sft section), or raise "
        "rollout.group_size"
    )
    assert (code, out.splitlines()[-3]) == (0, told)


def test_run_that_had_nothing_left_to_learn_asks_for_harder_tasks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(folder / "run", name="run", config={})
    solved = {"optim/updates": 0.0, "filter/zero_variance": 1.0, "reward/mean": 1.0, "train/success": 1.0}
    run.append_metrics({"step": 1, **solved})
    print_untrained(run.path)
    told = "had the same reward, 1 on average: choose harder tasks, because the policy solves these"
    assert told in capsys.readouterr().out


def test_run_of_which_one_step_trained_says_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory.create(folder / "run", name="run", config={})
    run.append_metrics({"step": 0, "sft/updates": 3.0})
    print_untrained(run.path)
    assert capsys.readouterr().out == ""
    run.append_metrics(
        {"step": 1, "optim/updates": 0.0, "filter/kept": 0.0, "filter/too_long": 1.0, "filter/none": 0.0}
    )
    print_untrained(run.path)
    told = "no train step updated the policy: every group was dropped (too long); no episode had a valid reward: fix"
    assert capsys.readouterr().out.startswith(told)
    run.append_metrics({"step": 2, "optim/updates": 1.0})
    print_untrained(run.path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "sft,truncated,advice",
    [
        (None, 0.5, "choose easier tasks, add a warm start (an sft section), or"),
        ({}, 0.5, "choose easier tasks, lengthen the warm start (sft.episodes, sft.epochs), or"),
        ({}, 0.75, f"{RAISE}, because 75% of the episodes ended as TRUNCATED_TOKENS, lengthen the warm start (sft.epi"),
    ],
)
def test_advice_follows_from_the_endings_and_from_the_warm_start(
    folder: Path, capsys: pytest.CaptureFixture[str], sft: object, truncated: float, advice: str
) -> None:
    run = RunDirectory.create(folder / "run", name="run", config={"sft": sft})
    failed = {"optim/updates": 0.0, "filter/zero_variance": 1.0, "reward/mean": 0.0, "train/success": 0.0}
    run.append_metrics({"step": 1, **failed, "ending/TRUNCATED_TOKENS": truncated})
    print_untrained(run.path)
    assert capsys.readouterr().out.partition("0 on average: ")[2].startswith(advice)
