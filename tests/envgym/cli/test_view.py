"""`envgym view` and `envgym recipes`: what is on disk, shown again."""

import json
import re
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import episode_rows
from envgym.trainer.recipes import RECIPE
from envgym.trainer.settings import recipe_settings
from tests.support import example_trees

Command = Callable[..., tuple[int, str, str]]

YOUNG = {
    "run": {"seed": 0},
    "model": {"name": "tiny"},
    "agent": {"name": "plain"},
    "envs": [{"id": "worlds:Vowels"}],
    "evaluation": {"tasks": 4, "samples": 1},
}
"""What a report reads of the settings."""


def test_report_is_made_again_from_what_is_on_disk(command: Command, folder: Path) -> None:
    command("train", "run.yaml")
    page = folder / "runs/vowels/report.html"
    page.unlink()
    assert command("view", "runs/vowels", "--export") == (0, "runs/vowels/report.html\n", "")
    assert "vowels" in page.read_text()


def test_report_is_opened_on_request(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command("train", "run.yaml", "--set", "run.steps=0")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert command("view", "runs/vowels", "--export") == (0, "runs/vowels/report.html\n", "")
    assert opened == []
    assert command("view", "runs/vowels", "--export", "--open") == (0, "runs/vowels/report.html\n", "")
    assert opened == [(folder / "runs/vowels/report.html").as_uri()]


def test_report_can_be_written_elsewhere(command: Command, folder: Path) -> None:
    command("train", "run.yaml", "--set", "run.steps=1")
    page = folder / "runs/vowels/report.html"
    before = page.read_bytes()
    assert command("view", "runs/vowels", "--out", "page.html")[:2] == (0, "page.html\n")
    assert (folder / "page.html").exists()
    assert page.read_bytes() == before


def test_json_is_what_the_page_shows(command: Command, folder: Path) -> None:
    command("train", "run.yaml")
    _, out, _ = command("view", "runs/vowels", "--json")
    told = json.loads(out)
    assert (told["meta"]["name"], told["meta"]["env_ids"], told["meta"]["recipe"]) == (
        "vowels",
        ["worlds:Vowels"],
        "grpo",
    )
    assert [row["step"] for row in told["metrics"]] == [1, 2]
    assert [evaluation["step"] for evaluation in told["evaluations"]] == [0, 2]
    assert len([episode for episode in told["episodes"] if episode["source"] == "train"]) == 32
    assert told["meta"]["declared"]["num_tasks"] == 6


def test_tree_is_shown_alone_by_its_id(command: Command, folder: Path) -> None:
    run = RunDirectory.create(folder / "young", name="young", config=YOUNG)
    record = example_trees.branch_after_a_tool_call()
    run.write_episodes(3, episode_rows([record, example_trees.invalid_branch()], step=3))
    code, out, err = command("view", "young", "--tree", record.id)
    assert (code, out, err) == (0, "young/trees/train_3_branch_after_a_tool_call.html\n", "")
    assert f"<title>{record.id} - young - envgym tree</title>" in (folder / out.strip()).read_text()
    assert command("view", "young", "--tree", f"train/3/{record.id}", "--out", "tree.html")[1] == "tree.html\n"
    pages = [re.sub(r'"created":"[^"]*"', "", (folder / name).read_text()) for name in ("tree.html", out.strip())]
    assert pages[0] == pages[1]
    told = json.loads(command("view", "young", "--tree", record.id, "--json")[1])
    assert (told["tree_id"], told["seed"], len(told["nodes"])) == (record.id, "11", 4)
    assert [node["cost"]["tokens_generated"] for node in told["nodes"]] == [0, 2, 2, 1]
    assert told["nodes"][1]["content"]["observation"] == "42"


def test_unknown_tree_is_one_sentence_with_near_names(command: Command, folder: Path) -> None:
    run = RunDirectory.create(folder / "young", name="young", config={})
    run.write_episodes(1, episode_rows([example_trees.invalid_branch()], step=1))
    assert command("view", "young", "--tree", "invalid_brnch") == (
        2, "", "envgym: tree must be a known name, got 'invalid_brnch' (--tree, young); "
        "did you mean train/1/invalid_branch?\n",
    )  # fmt: skip


def test_offered_tree_ids_are_accepted_and_the_nearest_is_first(command: Command, folder: Path) -> None:
    run = RunDirectory.create(folder / "young", name="young", config=YOUNG)
    for step in (0, 3):
        trees = [replace(example_trees.invalid_branch(), id=f"held-out/test/{task}/0") for task in (0, 1)]
        run.write_episodes(step, episode_rows(trees, step=step), label="held-out")
    for asked, first in (
        ("held-out/tst/1/0", "held-out/0/held-out/test/1/0"),
        ("held-out/3/held-out/test/0/1", "held-out/3/held-out/test/0/0"),
    ):
        err = command("view", "young", "--tree", asked)[2]
        offered = err.partition("did you mean ")[2].strip().rstrip("?").split(" or ")
        assert offered[0] == first
        for name in offered:
            assert command("view", "young", "--tree", name)[0] == 0
    assert "choose one of 4, such as held-out/0/held-out/test/0/0 or" in command("view", "young", "--tree", "@")[2]


def test_run_without_episodes_says_whether_they_may_come(command: Command, folder: Path) -> None:
    run = RunDirectory.create(folder / "young", name="young", config=YOUNG | {"run": {"seed": 0, "steps": 2}})
    told = "envgym: run must have episodes, got {} (--tree, young); {}"
    for step, got, do in ((0, "none yet", "no episodes are recorded before"), (2, "none", "run it again")):
        run.write_eval(step, "held-out", {"step": step, "label": "held-out"})
        assert command("view", "young", "--tree", "train/1/x")[2].startswith(told.format(got, do))


def test_run_that_is_not_over_has_a_report(command: Command, folder: Path) -> None:
    run = RunDirectory.create(folder / "young", name="young", config=YOUNG)
    run.append_metrics({"step": 1, "loss/entropy": 1.0})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    _, out, _ = command("view", "young", "--json")
    assert [row["step"] for row in json.loads(out)["metrics"]] == [1]
    assert command("view", "young", "--export")[0] == 0


@pytest.mark.parametrize(
    "words,sentence",
    [
        (["nowhere"], "run must be a directory, got no such directory (nowhere); name a directory that"),
        (["."], "run directory must hold run.json, got none (.); name a directory that"),
    ],
)
def test_what_is_no_run_cannot_be_viewed(command: Command, words: list[str], sentence: str) -> None:
    code, out, err = command("view", *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"envgym: {sentence}")


def test_report_goes_into_a_folder_that_exists(command: Command, folder: Path) -> None:
    RunDirectory.create(folder / "young", name="young", config={})
    code, _, err = command("view", "young", "--out", "no/such/page.html")
    assert (code, err) == (
        2, "envgym: folder of the report must exist, got no/such (--out); make it first.\n"
    )  # fmt: skip


# ---- the app -----------------------------------------------------------------------------------------------------


def test_one_run_that_cannot_be_shown_is_refused_and_among_others_it_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    from envgym.viewer.server import ViewerServer

    RunDirectory.create(folder / "young", name="young", config=YOUNG)
    RunDirectory.create(folder / "newer", name="newer", config=YOUNG)
    (folder / "newer/run.json").write_text(json.dumps({"schema": 99, "name": "newer"}))
    sentence = "run schema must be 1..4, got 99 (newer); read it with a newer envgym."
    assert command("view", "newer") == (2, "", f"envgym: {sentence}\n")
    shown: list[str] = []

    async def serve(self: ViewerServer, host: str, port: int, on_ready: Callable[[str], None]) -> None:
        shown.extend(run.run.name for run in self.runs)
        on_ready(await self.listen(host, port))
        await self.close()

    monkeypatch.setattr(ViewerServer, "serve", serve)
    code, out, _ = command("view", "young", "newer", "--port", "0")
    assert code == 0
    assert out.splitlines()[0] == f"not shown: {sentence}"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", out.splitlines()[1])
    assert shown == ["young"]
    assert command("view", "young", "young", "--port", "0")[0] == 0
    assert shown == ["young", "young"], "a run that is named twice is shown once"


def test_page_is_of_one_run(command: Command, folder: Path) -> None:
    for name in ("a", "b"):
        RunDirectory.create(folder / name, name=name, config=YOUNG)
    code, _, err = command("view", "a", "b", "--export")
    assert (code, err) == (
        2, "envgym: a page or its data must be of one run, got 2 (envgym view); "
        "write the pages one by one, or leave the option out to see all runs in the app.\n",
    )  # fmt: skip


def test_address_beyond_loopback_has_a_token(folder: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    from envgym.viewer.server import ViewerServer

    RunDirectory.create(folder / "young", name="young", config=YOUNG)

    async def serve(self: ViewerServer, host: str, port: int, on_ready: Callable[[str], None]) -> None:
        on_ready(await self.listen(host, port))
        await self.close()

    monkeypatch.setattr(ViewerServer, "serve", serve)
    out = command("view", "young", "--host", "0.0.0.0", "--port", "0")[1]
    assert re.match(r"http://0\.0\.0\.0:\d+/\?token=[\w-]{32}\n", out)
    monkeypatch.setenv("ENVGYM_VIEW_TOKEN", "chosen")
    opened: list[str] = []
    monkeypatch.setattr(
        webbrowser, "open", lambda url: opened.append(url + Path(url.removeprefix("file://")).read_text())
    )
    assert command("view", "young", "--port", "0", "--open")[0] == 0
    address, _, page = opened[0].partition("<")
    assert "chosen" not in address
    assert "/?token=chosen" in page
    assert not Path(address.removeprefix("file://")).exists()
    assert command("view", "young", "--port", "0")[1].splitlines()[0].endswith("/?token=chosen")


def test_recipes_are_listed_with_their_choices(command: Command) -> None:
    _, out, _ = command("recipes")
    lines = out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == list(RECIPE.table)
    assert "  loss        ppo_clip clip_low=0.2 clip_high=0.2" in lines


def test_recipe_is_shown_alone(command: Command) -> None:
    _, out, _ = command("recipes", "rloo", "--json")
    assert json.loads(out) == {"rloo": recipe_settings("rloo").model_dump(mode="json")}


def test_unknown_recipe_is_one_sentence(command: Command) -> None:
    code, out, error = command("recipes", "rlo")
    assert (code, out) == (2, "")
    assert re.fullmatch(
        r"envgym: recipe must be a known name, got 'rlo' \(envgym recipes\); did you mean rloo\?\n", error
    )
