"""Task folders: what is read, what is refused in one sentence that names the folder, splits, and reward files."""

import re
from pathlib import Path
from typing import Any

import pytest

from envgym.core.tasks import Split
from envgym.core.turns import Ending, Invalid, Scored
from envgym.envs.code._harbor_config import network_of, resolve_variables, unread_keys
from envgym.envs.code._harbor_folder import read_folder, read_task, strip_canary
from envgym.envs.code._harbor_reward import read_reward
from envgym.envs.code._harbor_tasks import DEFAULT_FOLDER, DEFAULT_SPLITS, FolderSettings, Supply, load_folder
from envgym.errors import InvalidInput
from tests.support.task_folders import TOML, write_task


def supply(
    folder: Path | str, splits: Any = None, share: float | None = None, seed: int = 0, bad: str = "fail"
) -> Supply:
    return load_folder(FolderSettings.of(str(folder), splits, share, seed, bad))  # Any: as settings have it


def names(tasks: Supply, split: Split) -> list[str]:
    return [tasks.tasks.task(split, index).id for index in range(tasks.tasks.size(split) or 0)]


# ---- what is read


def test_a_folder_of_the_template_of_harbor_is_read(tmp_path: Path) -> None:
    toml = TOML + "\n[metadata]\ndifficulty = 'hard'\ntags = ['a', 'b']\nmade = 2024-01-01\n"
    work = read_task(write_task(tmp_path, toml=toml))
    assert (work.name, work.instruction) == ("answer", "Write 42 to /app/answer.txt.\n")
    assert (work.file.verifier.timeout_sec, work.file.agent.timeout_sec) == (30.0, 60.0)
    assert (work.image, work.context) == (None, tmp_path / "answer" / "environment")
    assert unread_keys(work.file) == []
    task = supply(tmp_path).tasks.task(Split.TRAIN, 0)
    assert (task.id, task.prompt) == ("answer", "Write 42 to /app/answer.txt.\n")
    assert task.metadata == {"difficulty": "hard", "tags": ["a", "b"]}


def test_a_file_with_nothing_in_it_has_the_defaults_of_the_schema(tmp_path: Path) -> None:
    file = read_task(write_task(tmp_path, toml="")).file
    assert (file.schema_version, file.verifier.timeout_sec, file.agent.timeout_sec) == ("1.4", 600.0, None)
    assert (file.environment.build_timeout_sec, file.environment.network_mode) == (600.0, "public")


def test_keys_of_earlier_schemas_are_read(tmp_path: Path) -> None:
    toml = 'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false\ncpus = 2\n'
    file = read_task(write_task(tmp_path, toml=toml)).file
    assert (file.environment.memory_mb, file.environment.storage_mb, file.environment.cpus) == (2048.0, 512.0, 2.0)
    assert (file.schema_version, network_of(file)) == ("1.0", False)


def test_keys_that_are_not_read_are_listed_and_those_that_describe_are_not(tmp_path: Path) -> None:
    toml = (
        'new_key = 1\n[task]\nname = "org/answer"\n[metadata]\nanything = 1\n'
        '[environment]\nskills_dir = "/skills"\n[agent]\nmood = "calm"\n'
    )
    folder = write_task(tmp_path, toml=toml)
    assert unread_keys(read_task(folder).file) == ["agent.mood", "environment.skills_dir", "new_key"]
    found = supply(tmp_path).unread
    assert found == {"keys of answer": "agent.mood, environment.skills_dir, new_key of task.toml: not read"}


def test_an_image_stands_in_place_of_a_dockerfile(tmp_path: Path) -> None:
    toml = '[environment]\ndocker_image = "python:3.13-slim"\nworkdir = "/app"\n'
    work = read_task(write_task(tmp_path, toml=toml, dockerfile=None))
    assert (work.image, work.context, work.file.environment.workdir) == ("python:3.13-slim", None, "/app")


@pytest.mark.parametrize(
    "text, stripped",
    [
        ("<!-- benchmark canary GUID 1 -->\n# CANARY string\n\nDo it.\n", "Do it.\n"),
        ("# Title\nDo it.\n", "# Title\nDo it.\n"),
        ("\nDo it.\n# canary below\n", "\nDo it.\n# canary below\n"),
        ("# canary\n", ""),
    ],
)
def test_only_leading_canary_comments_are_stripped(text: str, stripped: str) -> None:
    assert strip_canary(text) == stripped


def test_tasks_of_a_folder_are_those_with_a_part_of_a_task(tmp_path: Path) -> None:
    write_task(tmp_path, "one")
    write_task(tmp_path, "two")
    (tmp_path / "docs").mkdir()
    (tmp_path / ".git" / "tests").mkdir(parents=True)
    assert [path.name for path in read_folder(tmp_path)] == ["one", "two"]
    assert [path.name for path in read_folder(tmp_path / "two")] == ["two"]


def test_every_file_is_part_of_what_a_task_is(tmp_path: Path) -> None:
    keys = {
        read_task(write_task(tmp_path, files={path: "x"})).key for path in ("environment/a", "tests/b", "solution/c")
    }
    keys |= {read_task(write_task(tmp_path, instruction="Other.")).key, read_task(write_task(tmp_path, test="x")).key}
    assert len(keys) == 5


# ---- what is refused

REFUSED_TOML = {
    "[[steps]]\nname = 'a'\n": "task must have one step, got 1 [[steps]]",
    "[environment]\nos = 'Windows'\n": "environment.os must be linux, got Windows",
    "[environment]\ngpus = 1\n": "environment.gpus must be 0 or absent, got 1",
    "[environment.tpu]\ntype = 'v4'\n": "environment.tpu must be absent",
    "[verifier]\nenvironment_mode = 'separate'\n": "verifier must have no environment of its own",
    "[verifier.environment]\ncpus = 1\n": "verifier must have no environment of its own",
    "[environment]\nnetwork_mode = 'allowlist'\n": "network_mode must be no-network or public",
    "[agent]\nnetwork_mode = 'allowlist'\n": "network_mode must be no-network or public, got allowlist",
    "[agent]\nnetwork_mode = 'no-network'\n": "network_mode must be the same for agent and verifier, got two modes",
    "schema_version = '2.0'\n": "task.toml must have the schema version 1.x, got 2.0",
    "[agent\n": "task.toml must be TOML, got Expected",
    "[agent]\ntimeout_sec = 'long'\n": "agent.timeout_sec must be a number, got long",
    "[verifier]\ntimeout_sec = 0\n": "verifier.timeout_sec must be greater than 0, got 0",
    "[verifier]\ntimeout_sec = nan\n": "verifier.timeout_sec must be",
    "[environment]\nmemory = 'much'\n": "environment must be sizes such as 512M or 2G in memory",
    "[environment]\nworkdir = 'app'\n": "environment.workdir must be an absolute path, such as /app, got app",
    "[environment.env]\nA = 1\n": "environment.env.A must be text, got 1",
    "[metadata.envgym]\nverification = 'never'\n": "verification must be 'shared' or 'fresh', got never",
    "[metadata.envgym]\nkeep = ['/']\n": "keep must be absolute paths below /, such as /app",
    "[metadata]\nenvgym = 1\n": "metadata.envgym must be a table, got 1",
}


@pytest.mark.parametrize("toml", REFUSED_TOML)
def test_a_refused_task_file_is_one_sentence_that_names_the_folder(tmp_path: Path, toml: str) -> None:
    folder = write_task(tmp_path, toml=toml)
    with pytest.raises(InvalidInput, match=re.escape(REFUSED_TOML[toml])) as error:
        read_task(folder)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


MISSING: dict[str, tuple[dict[str, Any], str]] = {
    "no instruction": ({"instruction": None}, "task must have a file instruction.md, got none"),
    "an empty instruction": ({"instruction": "# canary\n"}, "instruction.md must hold the text of the task"),
    "no tests": ({"test": None}, "task must have tests/test.sh, got none"),
    "no image": ({"dockerfile": None}, "task must have environment/Dockerfile or docker_image, got neither"),
    "compose": (
        {"files": {"environment/docker-compose.yaml": "services: {}"}},
        "environment must be one container, got docker-compose.yaml",
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_missing_or_refused_part_is_one_sentence_that_names_the_folder(tmp_path: Path, case: str) -> None:
    parts, sentence = MISSING[case]
    folder = write_task(tmp_path, **parts)
    with pytest.raises(InvalidInput, match=re.escape(sentence)) as error:
        read_task(folder)
    assert str(folder) in str(error.value)


def test_a_folder_without_a_task_file_and_one_of_the_first_form_are_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    (folder / "task.toml").unlink()
    with pytest.raises(InvalidInput, match=r"task must have a file task\.toml, got none"):
        supply(tmp_path)
    (folder / "task.yaml").touch()
    with pytest.raises(InvalidInput, match=r"task must have a task\.toml, got a task\.yaml"):
        supply(tmp_path)


def test_a_folder_that_is_none_or_holds_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="folder must be a directory"):
        supply(tmp_path / "none")
    with pytest.raises(InvalidInput, match="folder must hold task folders"):
        supply(tmp_path)


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "environment", "environment/Dockerfile", "tests"])
def test_a_part_that_is_a_link_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_task(tmp_path)
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(
        InvalidInput, match=f"link {name} must stay in the task folder, got one that leads out"
    ) as error:
        read_task(folder)
    assert str(folder) in str(error.value)


def test_a_link_that_leads_out_of_tests_is_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    (folder / "tests" / "key").symlink_to("/etc/passwd")
    with pytest.raises(InvalidInput, match="link tests/key must stay in its folder, got one that leads out"):
        read_task(folder)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    (folder / "instruction.md").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match=r"instruction\.md must be UTF-8 text"):
        read_task(folder)


def test_bad_tasks_are_left_out_where_that_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_task(tmp_path, "bad", test=None)
    write_task(tmp_path, "good")
    found = supply(tmp_path, bad="skip")
    assert names(found, Split.TRAIN) + names(found, Split.TEST) == ["good"]
    assert "A task is left out: task must have tests/test.sh" in caplog.text
    assert "tests/test.sh" in found.unread["folder 1"]


# ---- splits


def test_splits_by_name_and_pattern_and_test_comes_first(tmp_path: Path) -> None:
    for name in ("fix-a", "fix-b", "log-a", "other"):
        write_task(tmp_path, name)
    found = supply(tmp_path, {"train": ["fix-*", "log-a"], "test": "*-a"})
    assert (names(found, Split.TRAIN), names(found, Split.TEST)) == (["fix-b"], ["fix-a", "log-a"])
    with pytest.raises(InvalidInput, match=r"splits\.train must fit a task, got wrong.*fix-a"):
        supply(tmp_path, {"train": "wrong"})
    with pytest.raises(InvalidInput, match="split must be a known name"):
        supply(tmp_path, {"dev": "*"})
    with pytest.raises(InvalidInput, match="test_share must be left out where splits are given"):
        supply(tmp_path, {"train": "*"}, 0.5)


def test_a_share_divides_by_the_hash_of_the_files(tmp_path: Path) -> None:
    for number in range(40):
        write_task(tmp_path, f"task-{number}", instruction=f"Write {number}.")
    half, more = supply(tmp_path, share=0.5), supply(tmp_path, share=0.8)
    assert 10 <= len(names(half, Split.TEST)) <= 30
    assert set(names(half, Split.TEST)) < set(names(more, Split.TEST))
    assert names(supply(tmp_path, share=0.5, seed=1), Split.TEST) != names(half, Split.TEST)
    with pytest.raises(InvalidInput, match=r"test_share must lie in \[0, 1\], got 2"):
        supply(tmp_path, share=2)


def test_a_folder_that_has_changed_is_read_again(tmp_path: Path) -> None:
    write_task(tmp_path)
    assert supply(tmp_path) is supply(tmp_path)
    before = supply(tmp_path).tasks.task(Split.TRAIN, 0)
    write_task(tmp_path, instruction="Write 43 to /app/answer.txt, please.\n")
    after = supply(tmp_path).tasks.task(Split.TRAIN, 0)
    assert (after.prompt, after.key == before.key) == ("Write 43 to /app/answer.txt, please.\n", False)


def test_a_task_of_another_folder_is_refused(tmp_path: Path) -> None:
    write_task(tmp_path / "a", "one")
    write_task(tmp_path / "b", "two")
    with pytest.raises(InvalidInput, match="task must be one of the folder, got one"):
        supply(tmp_path / "b").find(supply(tmp_path / "a").tasks.task(Split.TRAIN, 0))


def test_nine_tasks_ship_each_with_a_solution_and_three_are_held_out() -> None:
    found = supply(DEFAULT_FOLDER, DEFAULT_SPLITS)
    assert (len(names(found, Split.TRAIN)), names(found, Split.TEST)) == (
        6,
        ["count-orders", "merge-configs", "sort-log"],
    )
    tasks = [found.tasks.task(split, index) for split in Split for index in range(found.tasks.size(split) or 0)]
    assert all(found.find(task).solution is not None for task in tasks)
    assert found.unread == {}
    assert len({str(task.metadata["category"]) for task in tasks}) == 8


# ---- variables and rewards


def test_variables_of_the_host_are_read_only_if_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("B_KEY", "secret")
    variables = {"A": "plain $HOME", "B": "${B_KEY}", "C": "${B_KEY:-none}", "D": "${NOT_SET:-}"}
    given = resolve_variables(variables, ["B_KEY"], where="t")
    assert given == {"A": "plain $HOME", "B": "secret", "C": "secret", "D": ""}
    assert resolve_variables({"C": "${B_KEY:-none}"}, [], where="t") == {"C": "none"}
    with pytest.raises(InvalidInput, match=r"variable \$\{B_KEY\} must be set here and named in host_env.*\(t\)"):
        resolve_variables({"B": "${B_KEY}"}, [], where="t")
    with pytest.raises(InvalidInput, match="got one that is not set"):
        resolve_variables({"B": "${NOT_SET}"}, ["NOT_SET"], where="t")


BOTH = {"test.sh": b"echo 1 > reward.txt; python3 -c 'write reward.json'"}


def test_rewards_are_read_and_json_wins() -> None:
    assert read_reward({"reward.txt": b" 0.25\n"}, BOTH, where="t") == Scored(value=0.25)
    parts = {"reward": 0.5, "style": 1.0, "count": 3.0}
    written = {"reward.json": b'{"reward": 0.5, "style": true, "count": 3}', "reward.txt": b"1"}
    assert read_reward(written, BOTH, where="t") == Scored(value=0.5, components=parts)
    assert read_reward({"reward.json": b'{"score": 1}'}, BOTH, where="t") == Scored(
        value=1.0, components={"score": 1.0}
    )


@pytest.mark.parametrize(
    "written, reason",
    [
        ({}, "The tests of t wrote no reward.txt and no reward.json."),
        ({"reward.txt": b""}, "The file reward.txt of t must have 1 to 65536 bytes."),
        ({"reward.txt": b" \n"}, "must have 1 to 65536 bytes."),
        ({"reward.txt": b"nan"}, "The entry reward in reward.txt of t must be finite, got nan."),
        ({"reward.txt": b"-inf"}, "must be finite"),
        ({"reward.txt": b"one"}, "The file reward.txt of t must hold a number"),
        ({"reward.txt": b"\xff"}, "must hold a number"),
        ({"reward.txt": b"1" * 70000}, "must have 1 to 65536 bytes."),
        ({"reward.json": b"{"}, "The file reward.json of t must hold a mapping of numbers"),
        ({"reward.json": b"1"}, "it is no mapping"),
        ({"reward.json": b"{}"}, "must have an entry reward, got no entry"),
        ({"reward.json": b'{"a": 1, "b": 2}'}, "must have an entry reward, got a, b"),
        ({"reward.json": b'{"reward": "1"}'}, "reward is no number"),
        ({"reward.json": b'{"reward": null}'}, "reward is no number"),
        ({"reward.json": b'{"reward": NaN}'}, "must be finite"),
        ({"reward.json": b'{"reward": 1, "part": 1e309}'}, "The entry part in reward.json of t must be finite"),
        ({"reward.json": b'{"reward": 1' + b"0" * 400 + b"}"}, "must be finite, got inf"),
        ({"reward.json": b"[" * 60000}, "must hold a mapping of numbers"),
    ],
)
def test_a_reward_that_is_none_is_invalid_and_never_0(written: dict[str, bytes], reason: str) -> None:
    reward = read_reward(written, BOTH, where="t")
    assert isinstance(reward, Invalid)
    assert reward.cause is Ending.ERROR_ENV
    assert reason in reward.reason


def test_a_reward_file_that_no_test_names_is_not_read() -> None:
    tests = {"test.sh": b"echo 0 > /logs/verifier/reward.txt"}
    written = {"reward.json": b'{"reward": 1}', "reward.txt": b"0"}
    assert read_reward(written, tests, where="t") == Scored(value=0.0)
    assert isinstance(read_reward({"reward.json": b'{"reward": 1}'}, tests, where="t"), Invalid)
