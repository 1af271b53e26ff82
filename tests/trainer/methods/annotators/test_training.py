"""Every annotator trains the tiny model, with the shaping or the filter that its paper has."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envgym.core.messages import Message
from envgym.errors import SettingsError, UnknownName
from envgym.runs.directory import RunDirectory
from envgym.trainer.train import train
from tests.support.judges import FreeModel
from tests.support.tiny_runs import step_metrics, tiny_settings

HERE = f"{Path(__file__).resolve()}"


class ListJudge(FreeModel):
    """Scores every turn of a dialogue of up to three turns by the length of the prompt."""

    async def reply(self, messages: Sequence[Message], *, seed: int, max_new_tokens: int) -> str:
        prompt = messages[-1].content
        scores = [1 - (len(prompt) + turn) % 2 for turn in range(prompt.count("[Turn "))]
        return str(scores)


class YesJudge(FreeModel):
    async def reply(self, messages: Sequence[Message], *, seed: int, max_new_tokens: int) -> str:
        return "YES"


class TokenScorer(FreeModel):
    async def compute_values(self, token_ids: Sequence[tuple[int, ...]], is_over: Sequence[bool]) -> list[float]:
        return [ids[-1] % 10 / 10 for ids in token_ids]


def run(directory: Path, **sections: Any) -> list[dict[str, float]]:
    """Train two steps on a game of up to three turns, and return their metrics."""
    game = {"id": "puzzles/guess_number-v0", "settings": {"size": 4, "max_turns": 3}}
    data = {"envs": [game], "agent": {"max_context_tokens": 512}, "credit": {"name": "dr_grpo"}, **sections}
    train(tiny_settings(directory, **data))
    return step_metrics(directory)


def model(name: str, kind: Any) -> dict[str, Any]:
    return {"models": {name: {"kind": kind}}}


def assert_learned(rows: list[dict[str, float]]) -> None:
    assert [row["optim/updates"] for row in rows] == [1.0, 1.0]
    assert all(math.isfinite(row["loss/policy"]) for row in rows)
    assert any(row["optim/grad_norm"] > 0 for row in rows)  # the env pays nothing: the annotations are the signal


def test_tarl_trains_on_the_scores_of_turns(tmp_path: Path) -> None:
    rows = run(
        tmp_path / "run",
        annotate=[{"name": "tarl", "reference": "secret"}],
        shaping={"name": "annotated", "annotation": "tarl", "coef": 10.0},
        **model("judge", f"{HERE}:ListJudge"),
    )
    assert_learned(rows)
    assert rows[0]["annotate/tarl_failed"] == 0.0
    assert rows[0]["annotate/tarl_count"] == 8 + 8 * rows[0]["rollout/turns"]


def test_rlpr_trains_on_the_probability_of_the_reference_and_resumes(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "envs": [{"id": "math/arithmetic-v0", "settings": {"level": 1}}],
        "annotate": ["rlpr"],
        "shaping": {"name": "annotated", "annotation": "rlpr", "instead": True},
        "filter": {"name": "rlpr_std", "counted_from": 1, "active_from": 2, "share": 0.01},
        **model("initial", "snapshot"),
    }
    rows = run(tmp_path / "run", **sections)
    assert_learned(rows)
    assert [row["annotate/rlpr_count"] for row in rows] == [8.0, 8.0]
    assert 0 <= rows[0]["annotate/rlpr_mean"] < 1
    state = tmp_path / "run" / "checkpoints" / "step-000002" / "parts" / "filter" / "state.json"
    assert '"mean": null' not in state.read_text()


def test_verifree_trains_on_the_probability_of_the_whole_reference(tmp_path: Path) -> None:
    rows = run(
        tmp_path / "run",
        envs=[{"id": "math/arithmetic-v0", "settings": {"level": 1}}],
        annotate=[{"name": "verifree", "model": "initial", "answer_tags": ["", ""]}],
        shaping={"name": "annotated", "annotation": "verifree", "instead": True},
        **model("initial", "snapshot"),
    )
    assert_learned(rows)
    assert [row["annotate/verifree_count"] for row in rows] == [8.0, 8.0]
    assert 0 < rows[0]["annotate/verifree_mean"] < 1e-2


def test_prof_trains_on_the_survivors(tmp_path: Path) -> None:
    rows = run(
        tmp_path / "run",
        annotate=["process_reward"],
        filter={"name": "prof", "remove": 2, "least": 1},
        shaping={"name": "annotated", "annotation": "process", "level": "turn"},
        **model("scorer", f"{HERE}:TokenScorer"),
    )
    assert_learned(rows)
    assert [row["rows/trained"] for row in rows] == [4.0, 4.0]
    assert [row["dropped/process_disagrees"] for row in rows] == [4.0, 4.0]
    assert [row["filter/kept"] for row in rows] == [0.5, 0.5]  # the parts that were removed count as groups


def test_a_judge_that_says_yes_to_everything_is_refused_by_its_probes(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="accept at most 5% of answers that hold nothing, got 100%"):
        run(
            tmp_path / "run",
            annotate=[{"name": "probed_judge", "reference": "secret"}],
            **model("judge", f"{HERE}:YesJudge"),
        )
    assert not (tmp_path / "run").exists()


def test_the_rate_of_a_probed_judge_is_in_the_metrics(tmp_path: Path) -> None:
    annotate = [{"name": "probed_judge", "max_false_positives": 1.0, "reference": "secret"}]
    run(tmp_path / "run", annotate=annotate, **model("judge", f"{HERE}:YesJudge"))
    rows = RunDirectory.open(tmp_path / "run").metrics()
    assert [row["annotate/judge_false_positives"] for row in rows if row["step"] == 0] == [1.0]


@pytest.mark.parametrize("section", ["filter", "shaping"])
def test_what_reads_annotations_that_nobody_makes_is_refused(section: str, tmp_path: Path) -> None:
    chosen = {"filter": {"name": "prof", "remove": 2}, "shaping": {"name": "annotated", "annotation": "proces"}}[
        section
    ]
    remedy = r"add an annotator with this name to annotate\."
    with pytest.raises(UnknownName, match=rf"annotation must be a known name, got '\w+' \({section}\); {remedy}$"):
        run(tmp_path / "run", annotate=["judge"], **{section: chosen}, **model("judge", f"{HERE}:YesJudge"))
