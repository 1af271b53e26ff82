"""Suites: cells are combinations, each a run that is resumed at the episode; another suite is refused."""

import json
from contextlib import closing
from pathlib import Path

import pytest

import envgym
from envgym.agents.evaluation import run as evaluations
from envgym.agents.evaluation import suite as suites
from envgym.agents.evaluation.compare import compare_evaluations, read_evaluations
from envgym.agents.evaluation.run import PolicyHolder
from envgym.agents.evaluation.suite import SHIPPED, SuiteSettings, cells_of, read_suite, run_suite, suite_cells
from envgym.agents.policies.backends import build_policy
from envgym.agents.protocols import Policy
from envgym.agents.rollout.messages import MessagePolicy
from envgym.agents.settings import EngineSettings, ModelSettings
from envgym.api import eval_settings
from envgym.cli.main import main
from envgym.config.settings import build_settings
from envgym.errors import RunError, SettingsError, UnknownName
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of

SMALL = """
name: small
models: [tiny]
envs:
  - {id: math/arithmetic-v0, name: easy, settings: {level: 1}}
  - {id: puzzles/guess_number-v0}
tasks: 3
samples: 2
metrics: [success, cost]
agent: {max_turn_tokens: 8}
"""


def small(**changes: object) -> SuiteSettings:
    data = {"name": "s", "models": ["tiny"], "envs": [{"id": "math/arithmetic-v0"}], "tasks": 2, **changes}
    return build_settings(SuiteSettings, data, where="test")


def write(folder: Path, text: str = SMALL) -> str:
    path = folder / "small.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", sorted(file.stem for file in SHIPPED.glob("*.yaml")))
def test_shipped_suite_names_envs_that_exist_and_every_family_has_one(name: str) -> None:
    suite = read_suite(name, models=["tiny"])
    assert suite.name == name
    assert suite.summary
    for cell in suite_cells(suite):
        assert cell.env.id in envgym.list_ids()
        assert cell.env.id.startswith(f"{name}/")
        eval_settings("tiny", [{"id": cell.env.id}], agent=suite.agent, where="test")
    families = {env.partition("/")[0] for env in envgym.list_ids()} - {"data"}  # which needs a file of the user
    assert families == {file.stem for file in SHIPPED.glob("*.yaml")}


def test_cells_are_all_combinations_and_are_named_by_what_differs() -> None:
    suite = small(
        splits=["test", "train"],
        searches=["chain", {"name": "best_of", "n": 4}],
        budgets={"short": {"agent": {"max_turn_tokens": 8}}},
    )
    assert [cell.name for cell in suite_cells(suite)] == [
        "math_arithmetic-v0-test-chain",
        "math_arithmetic-v0-test-best_of-n=4",
        "math_arithmetic-v0-train-chain",
        "math_arithmetic-v0-train-best_of-n=4",
    ]
    assert [cell.name for cell in suite_cells(small(models=["tiny", "smollm2"]))] == [
        "tiny-math_arithmetic-v0",
        "smollm2-math_arithmetic-v0",
    ]


def test_settings_of_a_cell_are_those_of_suite_model_and_budget(tmp_path: Path) -> None:
    suite = small(
        agent={"max_turn_tokens": 9, "max_context_tokens": 900},
        models=[{"name": "tiny", "agent": {"max_turn_tokens": 7}}],
        budgets={"b": {"agent": {"max_context_tokens": 800}, "search": {"n": 3}}},
        searches=["best_of"],
        samples=2,
        evaluation={"success_at": 0.5},
        seed=4,
    )
    (cell,) = suite_cells(suite)
    settings = suites.cell_settings(suite, cell, tmp_path, tasks=5, make_settings=eval_settings, trusted=False)
    assert (settings.agent.max_turn_tokens, settings.agent.max_context_tokens) == (7, 800)
    assert settings.evaluation.search.settings == {"n": 3}
    assert (settings.evaluation.tasks, settings.evaluation.samples, settings.evaluation.temperature) == (5, 2, 1.0)
    assert (settings.evaluation.success_at, settings.run.seed) == (0.5, 4)
    assert settings.envs == suite.envs
    assert settings.run.path == tmp_path / "cells" / cell.name


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"models": []}, "models must be given, got none"),
        ({"envs": []}, "envs must hold 1 or more entries"),
        ({"taks": 3}, "settings key must be known, got taks .*did you mean tasks?"),
        ({"envs": [{"id": "math/arithmetic-v0"}] * 2}, "env name must be unique, got math_arithmetic-v0"),
    ],
)
def test_suite_that_cannot_be_is_refused(changes: dict[str, object], told: str, tmp_path: Path) -> None:
    data = {"name": "s", "models": ["tiny"], "envs": [{"id": "math/arithmetic-v0"}], **changes}
    (tmp_path / "s.yaml").write_text(json.dumps(data))
    with pytest.raises(SettingsError, match=told):
        read_suite(str(tmp_path / "s.yaml"))


def test_unknown_suite_is_refused_with_near_names() -> None:
    with pytest.raises(UnknownName, match="did you mean puzzles"):
        read_suite("puzzle")


def test_suite_is_limited_extended_and_its_cells_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = write(tmp_path), str(tmp_path / "out")
    assert main(["eval", path, "--out", out, "--limit", "1"]) == 0
    table = capsys.readouterr().out
    assert [line.split()[:2] for line in table.splitlines()[:3]] == [
        ["cell", "tasks"],
        ["easy", "1"],
        ["puzzles_guess_number-v0", "1"],
    ]
    assert "invalid" in table
    before = {cell: RunDirectory.open(cell).episodes() for cell in cells_of(Path(out))}
    assert main(["eval", path, "--out", out, "--resume", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cells"]
    assert {name: cell["evaluations"][0]["num_tasks"] for name, cell in found.items()} == {
        "easy": 3,
        "puzzles_guess_number-v0": 3,
    }
    assert "metric/success_low" in found["easy"]["evaluations"][0]["metrics"]
    for cell, rows in before.items():
        assert len(rows) == 2
        after = {row["tree_id"]: row for row in RunDirectory.open(cell).episodes()}
        assert len(after) == 6
        assert all(after[row["tree_id"]]["tree"] == row["tree"] for row in rows), "what was played is kept"
    easy = read_evaluations(cells_of(Path(out))[0])
    assert list(compare_evaluations([easy, easy])) == ["math/arithmetic-v0, held-out"]


def test_interrupted_suite_resumes_at_the_episode_with_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, out = read_suite(write(tmp_path)), tmp_path / "out"
    done: list[str] = []

    def stop(phase: str, count: int, total: int) -> None:
        done.append(phase)
        if phase.startswith("puzzles") and count == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_suite(suite, out, make_settings=eval_settings, on_progress=stop)
    assert [cell.name for cell in cells_of(out)] == ["easy", "puzzles_guess_number-v0"]
    resumed: list[tuple[str, int]] = []
    results = run_suite(
        suite, out, make_settings=eval_settings, resume=True, on_progress=lambda *item: resumed.append(item[:2])
    )
    assert {phase for phase, _ in resumed} == {"puzzles_guess_number-v0: evaluate held-out"}, (
        "a whole cell is not played"
    )
    assert resumed[0][1] >= 3, "finished episodes are kept"
    assert {name: len(result.evaluations[0].rewards) for name, result in results.items()} == {
        "easy": 3,
        "puzzles_guess_number-v0": 3,
    }


def test_another_suite_or_a_taken_directory_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    suite, out = small(agent={"max_turn_tokens": 8}), tmp_path / "out"
    run_suite(suite, out, make_settings=eval_settings)
    kept = {file: file.read_bytes() for file in out.rglob("*.parquet")}
    with pytest.raises(RunError, match="run directory must be new or empty"):
        run_suite(suite, out, make_settings=eval_settings)
    other = small(agent={"max_turn_tokens": 9})
    with pytest.raises(
        RunError, match=r"resumed settings must be those of the run, got changes in \['agent.max_turn_tokens'\]"
    ):
        run_suite(other, out, make_settings=eval_settings, resume=True)
    with pytest.raises(RunError, match=r"evaluation\.tasks must be at least the 2 of the run, got 1"):
        run_suite(suite, out, make_settings=eval_settings, resume=True, limit=1)
    with pytest.raises(SettingsError, match="limit must be at least 1, got 0"):
        run_suite(suite, out, make_settings=eval_settings, resume=True, limit=0)
    with pytest.raises(RunError, match=r"suite must have begun, got no suite.json"):
        run_suite(suite, tmp_path, make_settings=eval_settings, resume=True)
    assert {file: file.read_bytes() for file in out.rglob("*.parquet")} == kept


def test_env_that_cannot_be_made_is_told_before_the_first_episode(tmp_path: Path) -> None:
    suite = small(envs=[{"id": "math/arithmetic-v0"}, {"id": "math/problems-v0", "settings": {"levle": 1}}])
    with pytest.raises(UnknownName, match="levle"):
        run_suite(suite, tmp_path / "out", make_settings=eval_settings)
    assert not (tmp_path / "out").exists()


def test_other_options_are_refused_with_a_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", write(tmp_path), "--tasks", "5", "--env", "math/arithmetic-v0"]) == 2
    assert "options must be among --model, --out" in capsys.readouterr().err
    assert main(["eval", "--model", "tiny", "--limit", "5"]) == 2
    assert "--limit must be used with a suite, got 5" in capsys.readouterr().err


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What becomes of policies: `made N` and `closed N`, N from 0."""
    told: list[str] = []

    def build(model: ModelSettings, engine: EngineSettings) -> Policy | MessagePolicy:
        policy = build_policy(model, engine)
        close, number = policy.close, sum(event.startswith("made") for event in told)

        def closed() -> None:
            told.append(f"closed {number}")
            close()

        monkeypatch.setattr(policy, "close", closed)
        told.append(f"made {number}")
        return policy

    monkeypatch.setattr(evaluations, "build_policy", build)
    return told


def test_a_model_is_loaded_once_for_all_its_cells(tmp_path: Path, events: list[str]) -> None:
    suite = small(searches=["chain", {"name": "best_of", "n": 2}], agent={"max_turn_tokens": 4}, tasks=1)
    results = run_suite(suite, tmp_path / "s", make_settings=eval_settings)
    assert (len(results), events) == (2, ["made 0", "closed 0"])


def test_a_cell_samples_what_it_would_alone(tmp_path: Path) -> None:
    envs = [{"id": "puzzles/guess_number-v0"}, {"id": "math/arithmetic-v0"}]
    suite = small(envs=envs, agent={"max_turn_tokens": 4}, evaluation={"temperature": 1.0})
    together = run_suite(suite, tmp_path / "s", make_settings=eval_settings)["math_arithmetic-v0"]
    cell = next(cell for cell in suite_cells(suite) if cell.env.id == "math/arithmetic-v0")
    settings = suites.cell_settings(suite, cell, tmp_path / "a", tasks=2, make_settings=eval_settings, trusted=False)
    alone = evaluations.run_evaluation(settings)

    def tokens(directory: Path) -> list[tuple[int, ...]]:
        trees = trees_of(RunDirectory.open(directory).episodes())
        return [part.token_ids for tree in trees for node in tree.nodes for part in node.edge.segments]

    assert tokens(together.directory) == tokens(alone.directory)


def test_a_policy_is_closed_before_that_of_other_settings_is_made(events: list[str]) -> None:
    settings = eval_settings("tiny", [{"id": "math/arithmetic-v0"}], where="test")
    other = settings.engine.model_copy(update={"max_batch": 1})
    with closing(PolicyHolder()) as holder:
        first = holder.policy(settings.model, settings.engine)
        assert holder.policy(settings.model, settings.engine) is first
        assert holder.policy(settings.model, other) is not first
    assert events == ["made 0", "closed 0", "made 1", "closed 1"]
