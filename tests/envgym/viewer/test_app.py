"""The routes: what they return, and one clear sentence for whatever is asked wrongly."""

import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from pydantic import BaseModel

from envgym.errors import RunError
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import episode_rows
from envgym.viewer.clip import MAX_SEGMENT_TOKENS, MAX_TOKENS
from envgym.viewer.server import ViewerServer, running
from envgym.viewer.viewed_run import ViewedRun
from tests.envgym.viewer.conftest import PER_STEP, TREE_ID, TREE_STEP
from tests.support.large_runs import chain, large_run


def test_summary_counts_what_was_saved(client: httpx.Client, run: RunDirectory) -> None:
    (told,) = client.get("/api/runs").json()["runs"]
    assert (told["name"], told["env_ids"], told["last_step"], told["steps"]) == ("run", ["math/arithmetic-v0"], 3, 100)
    assert told["num_episodes"] == told["num_with_details"] == told["sources"]["train"] == len(run.episodes())
    assert told["steps_saved"] == {"train": [1, 2, 3, TREE_STEP]}
    assert told["problems"] == []


def test_metrics_after_a_step_are_those_of_later_steps(client: httpx.Client, run: RunDirectory) -> None:
    assert [row["step"] for row in client.get("/api/runs/0/metrics").json()["rows"]] == [1, 2, 3]
    run.append_metrics({"step": 4, "loss/entropy": float("nan")})
    told = client.get("/api/runs/0/metrics", params={"after": 3}).json()
    assert told == {"rows": [{"step": 4, "values": {"loss/entropy": None}}], "num_rows": 4}


def test_pages_of_the_table_join_to_the_whole(client: httpx.Client) -> None:
    asked: dict[str, str | int] = {"sort": "reward", "descending": "true", "max_step": 3}
    whole = client.get("/api/runs/0/episodes", params={**asked, "limit": 200}).json()
    assert whole["total"] == len(whole["episodes"]) == 3 * PER_STEP
    pages = [client.get("/api/runs/0/episodes", params={**asked, "limit": 50, "offset": at}) for at in (0, 50, 100)]
    assert [row for page in pages for row in page.json()["episodes"]] == whole["episodes"]


def test_tree_comes_as_an_outline_and_its_nodes_one_by_one(client: httpx.Client) -> None:
    name: dict[str, str | int] = {"source": "train", "step": TREE_STEP, "tree": TREE_ID}
    tree = client.get("/api/runs/0/tree", params=name).json()
    assert len(tree["nodes"]) == 60
    assert all(node["content"]["segments"] == [] for node in tree["nodes"])
    assert sum(node["stats"]["pruned"] is not None for node in tree["nodes"]) > 0
    node = client.get("/api/runs/0/node", params={**name, "node": 5}).json()
    assert node["segments"][0]["num_tokens"] == len(node["segments"][0]["token_ids"]) > 0


def test_long_episode_comes_in_parts_that_join_to_the_whole(client: httpx.Client, run: RunDirectory) -> None:
    tree = chain(1, np.random.default_rng(0), num_turns=2, words_per_turn=400_000)
    run.write_episodes(5, episode_rows([tree], step=5))
    (path,) = (file for file in run.episode_files() if file.name.startswith("step-000005"))
    assert len(RunDirectory(run.path).episodes([5])[0]["tree"]) > 5_000_000
    name: dict[str, str | int] = {"source": "train", "step": 5, "tree": "chain", "leaf": 2}
    reply = client.get("/api/runs/0/episode", params=name)
    assert len(reply.content) < 1_000_000, path
    turn = reply.json()["turns"][0]
    said = turn["segments"][0]
    assert len(said["token_ids"]) == MAX_SEGMENT_TOKENS < MAX_TOKENS
    assert said["num_tokens"] == len(tree.nodes[1].edge.segments[0]) > 400_000
    part: dict[str, str | int] = {**name, "turn": 0, "field": "segment", "segment": 0, "start": said["num_tokens"] - 10}
    last = client.get("/api/runs/0/episode/part", params=part).json()
    assert tuple(last["token_ids"]) == tree.nodes[1].edge.segments[0].token_ids[-10:]
    assert turn["action_characters"] == len(str(tree.nodes[1].outcome.action))  # type: ignore[union-attr]  # it has one
    text = client.get("/api/runs/0/episode/part", params={**part, "field": "action", "start": len(turn["action"])})
    assert str(tree.nodes[1].outcome.action)[len(turn["action"]) :].startswith(text.json()["text"])  # type: ignore[union-attr]


def test_task_is_shown_at_every_step_with_its_mean(client: httpx.Client) -> None:
    told = client.get("/api/runs/0/task", params={"source": "train", "task": "train/3"}).json()
    assert [item["step"] for item in told["steps"]] == [1, 2, 3]
    for item in told["steps"]:
        valid = [row["reward"] for row in item["episodes"] if row["reward"] is not None]
        assert {row["task_id"] for row in item["episodes"]} == {"train/3"}
        assert item["mean"] == pytest.approx(sum(valid) / len(valid))


def test_settings_and_metrics_of_two_runs_are_compared(run: RunDirectory, tmp_path: Path) -> None:
    other = large_run(tmp_path / "other", num_steps=2, episodes_per_step=8)
    other.change_config({**other.config, "optim": {"learning_rate": 0.01, "max_grad_norm": 1.0}}, step=0)
    runs = [ViewedRun(run.path), ViewedRun(other.path)]
    server = ViewerServer(runs)
    with running(server), httpx.Client(base_url=server.url) as client:
        told = client.get("/api/compare", params={"runs": "0,1"}).json()
    assert told["settings"] == [
        {"key": "optim.learning_rate", "values": [{"value": 0.001}, {"value": 0.01}]},
        {"key": "optim.max_grad_norm", "values": [{}, {"value": 1.0}]},
    ]
    last = {item["key"]: item["values"] for item in told["metrics"]}
    assert last["loss/entropy"] == [[3, 1 / 3], [2, 1 / 2]]


@pytest.mark.parametrize(
    "path,status,sentence",
    [
        ("/api/runs/7/episodes", 404, "run must be one of 0..0, got 7 (/api/runs/7/episodes); "),
        ("/api/runs/0/episodes?limit=1000000", 422, "limit must be valid: Input should be less than or equal to 200"),
        ("/api/runs/0/episodes?min_reward=high", 422, "min_reward must be valid: Input should be a valid number"),
        ("/api/runs/0/episodes?colour=red", 422, "colour must be valid: Extra inputs are not permitted, got red"),
        ("/api/runs/0/episode?source=train&step=1&tree=stp-000001/000/00&leaf=2", 404, "episode must be one of the"),
        ("/api/runs/0/tree?source=train&step=1&tree=x", 404, "episode must be one of the run, got train/1/x ("),
        (f"/api/runs/0/node?source=train&step={TREE_STEP}&tree={TREE_ID}&node=99", 404, "node must be one of 0..59"),
        (f"/api/runs/0/tree?source=train&tree=a&step={10**30}", 422, "step must be valid: Input should be less than"),
        ("/api/compare?runs=a", 422, "runs must be valid: String should match pattern"),
        ("/api/nothing", 404, "address must be one of the viewer, got /api/nothing (HTTP 404); begin at the first"),
        ("/assets/..%2findex.html", 404, "address must be one of the viewer"),
        ("/assets/../../app.py", 404, "address must be one of the viewer"),
    ],
)
def test_wrong_questions_are_one_sentence(client: httpx.Client, path: str, status: int, sentence: str) -> None:
    reply = client.get(path)
    assert reply.status_code == status
    assert reply.json()["detail"].startswith(sentence)


def test_fault_of_the_viewer_is_logged_and_no_fault_of_the_request(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Stored(BaseModel):
        step: int

    monkeypatch.setattr(ViewedRun, "metrics", lambda self: Stored.model_validate({"step": "x"}))
    reply = client.get("/api/runs/0/metrics")
    assert reply.status_code == 500
    assert reply.json()["detail"].startswith("page must be made, got ValidationError")
    assert "the viewer could not answer /api/runs/0/metrics" in caplog.text


def test_run_of_a_newer_schema_is_refused(run: RunDirectory) -> None:
    path = run.path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    with pytest.raises(RunError, match=r"run schema must be 1\.\.4, got 99 \(.*\); read it with a newer envgym\."):
        ViewedRun(run.path)


def test_broken_metrics_and_settings_are_told_and_episodes_are_shown(client: httpx.Client, run: RunDirectory) -> None:
    (run.path / "metrics.jsonl").write_text("{}\n")
    (run.path / "config.json").write_text("[")
    told = client.get("/api/runs").json()["runs"][0]
    assert len(told["problems"]) == 2
    assert all("restore it" in text for text in told["problems"])
    assert client.get("/api/runs/0/episodes").json()["total"] == told["num_episodes"] > 0
    assert "metrics.jsonl, line 1" in client.get("/api/runs/0/metrics").json()["detail"]


@pytest.mark.parametrize("text", ['{"envs": 3, "model": [], "run": {}, "agent": "x"}', '{"run": null}', "[]"])
def test_settings_of_another_kind_are_told(client: httpx.Client, run: RunDirectory, text: str) -> None:
    (run.path / "config.json").write_text(text)
    told = client.get("/api/runs").json()["runs"][0]
    assert (told["model"], told["last_step"], told["num_episodes"] > 0) == ("", 3, True)
    assert len(told["problems"]) == ("null" not in text)


def test_nothing_is_written_into_the_run(client: httpx.Client, run: RunDirectory) -> None:
    def state() -> dict[str, tuple[int, int]]:
        files = (path for path in run.path.rglob("*") if path.is_file())
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}

    before = state()
    name: dict[str, str | int] = {"source": "train", "step": TREE_STEP, "tree": TREE_ID}
    for path in ("runs", "runs/0/episodes", "runs/0/groups", "runs/0/metrics", "runs/0/evaluations"):
        assert client.get(f"/api/{path}").status_code == 200
    assert client.get("/api/runs/0/tree", params=name).status_code == 200
    assert state() == before


def test_pages_name_no_other_server(client: httpx.Client) -> None:
    page = client.get("/").text
    assert "://" not in page
    for name in ("shared.js", "shared.css", "main.js", "viewer.css", "treedrawing.js"):
        reply = client.get(f"/assets/{name}")
        assert reply.status_code == 200
        assert "http://" not in reply.text
        assert "innerHTML" not in reply.text
