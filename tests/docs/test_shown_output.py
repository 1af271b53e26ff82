"""The output that pages show is what the program prints, but for the numbers of a run."""

from pathlib import Path

import pytest

from envgym.cli.main import COMMANDS, main
from envgym.core.turns import Ending
from tests.support.pages import SMALL, blocks_of, form_of

FLAKY = """
from envgym.errors import ToolInfraFailure
from tests.support.tiny_runs import EvenWords


class Flaky(EvenWords):
    def respond(self, action):
        if self.task.payload["number"] % 2:
            raise ToolInfraFailure("away")
        return super().respond(action)
"""


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Return the code of a command, and what it printed on both streams."""
    capsys.readouterr()
    code = main(words)
    return code, *capsys.readouterr()


def test_results_have_the_form_that_the_page_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated, changed, compared = (form_of(block.text) for block in blocks_of("docs/evaluate.md", "text"))
    (folder / "flaky.py").write_text(FLAKY, encoding="utf-8")
    words = "eval --model tiny --env flaky.py:Flaky --split train --tasks 4 --samples 2 --agent plain --max-invalid 0.9"
    code, out, _ = said([*words.split(), "--agent-set", "max_turn_tokens=4", "--agent-set", "on_length=close"], capsys)
    printed = form_of(out.replace("flaky.py:Flaky, train-split", "math/arithmetic-v0, held-out"))
    cut = evaluated.index("...")
    assert (code, printed[:cut]) == (0, evaluated[:cut])
    # Flaky has no tools; tests/agents/test_tool_failures.py has the line of their errors
    rest = [line for line in evaluated[cut + 1 :] if not line.startswith(("tool errors ", "endings "))]
    assert [line for line in rest if line not in printed[cut:]] == []
    (endings,) = (line for line in evaluated if line.startswith("endings "))
    assert set(endings.replace(",", "").replace(" N", "").split()[1:]) <= set(Ending)
    code, out, _ = said(["train", "runs/first", "--resume"], capsys)
    assert (code, form_of(out)[: len(changed)]) == (0, changed)
    code, out, _ = said(["compare", "runs/demo/evals/step-000000-held-out.json", "runs/demo"], capsys)
    labels, shown = (list(dict.fromkeys(line.split()[0] for line in lines)) for lines in (form_of(out), compared))
    of_samples = ("pass@N", "coverage")  # lines of several samples; tests/agents/test_compare.py has them
    assert (code, labels) == (0, [label for label in shown if label not in of_samples])


@pytest.mark.usefixtures("folder")
def test_progress_and_the_error_have_the_form_that_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    progress, _, error = blocks_of("docs/runs.md", "text")  # the line between: test_interrupts.py
    chosen = (*SMALL, "run.steps=2", "run.checkpoint_every=1", "run.directory=runs/two")
    words = ["train", "first.yaml", *(word for setting in chosen for word in ("--set", setting))]
    code, _, err = said(words, capsys)
    printed = form_of(err)
    shown = form_of(progress.text.replace("runs/demo", "runs/two"))
    assert (code, [line for line in shown if line not in printed]) == (0, [])
    damaged = Path("runs/two/checkpoints/step-000002/optimizer.pt")
    damaged.write_bytes(damaged.read_bytes()[:1000])
    code, _, err = said([*words, "--resume"], capsys)
    sentence = " ".join(error.text.split()).replace("runs/demo", "runs/two")
    assert (code, form_of(err)) == (2, form_of(sentence))


def test_commands_of_the_architecture_page_are_those_of_the_program() -> None:
    (shown,) = (block.text for block in blocks_of("docs/architecture.md", "text") if block.text.startswith("envgym "))
    assert [part.split()[0] for part in shown.removeprefix("envgym ").split(" | ")] == list(COMMANDS)
