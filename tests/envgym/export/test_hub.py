"""`envgym push` with the real huggingface_hub and a Hub on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from envgym.cli.main import main
from envgym.errors import InvalidInput
from envgym.export.hub import push_folder
from tests.support.hub import TOKEN, StubHub, stub_hub
from tests.support.sources import ROOT

WEIGHTS = bytes(range(256)) * 8


@pytest.fixture
def hub() -> Iterator[StubHub]:
    with stub_hub() as hub:
        yield hub


def exported(folder: Path, kind: str = "model") -> dict[str, bytes]:
    """Write a small export, and return its files."""
    folder.mkdir()
    files = {
        "README.md": b"---\nlicense: apache-2.0\n---\n# A model\n",
        "provenance.json": json.dumps({"schema": 1, "kind": kind}).encode(),
        "data/train.parquet" if kind != "model" else "model.safetensors": WEIGHTS,
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return files


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def push(folder: Path, *words: str, hub: StubHub) -> subprocess.CompletedProcess[str]:
    """Run `envgym push` as its users do: what huggingface_hub reads as it is imported stands in the environment."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    home = str(folder.with_name("home"))
    settings = {"HF_HOME": home, "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
    environment = {**own, **settings, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "envgym", "push", str(folder), *words]
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)


@pytest.mark.slow
def test_a_pushed_folder_is_in_the_repository_byte_by_byte(hub: StubHub, tmp_path: Path) -> None:
    files = exported(tmp_path / "out")
    done = push(tmp_path / "out", "me/first", "--private", "--json", hub=hub)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"folder": str(tmp_path / "out"), "address": f"{hub.url}/me/first"}
    assert (hub.name, hub.repo_type, hub.is_private) == ("me/first", "model", True)
    assert hub.files == files == contents(tmp_path / "out")
    assert any("/info/lfs/objects/batch" in request for request in hub.requests), "weights go by LFS"


@pytest.mark.slow
def test_a_push_that_fails_at_the_commit_is_one_sentence_and_can_be_repeated(hub: StubHub, tmp_path: Path) -> None:
    files = exported(tmp_path / "out", kind="chat")
    hub.refused = {"/commit/": HTTPStatus.FORBIDDEN}
    failed = push(tmp_path / "out", "me/chats", hub=hub)
    assert failed.returncode == 2
    (line,) = [line for line in failed.stderr.splitlines() if line.startswith("envgym: ")]
    assert "push must succeed, got HfHubHTTPError: " in line
    assert "403" in line
    assert line.endswith("the folder is complete and unchanged; push it again later.")
    assert "Traceback" not in failed.stderr
    assert contents(tmp_path / "out") == files
    hub.refused = {}
    assert push(tmp_path / "out", "me/chats", hub=hub).returncode == 0
    assert (hub.repo_type, hub.is_private, hub.files) == ("dataset", False, files)


@pytest.mark.slow
def test_a_push_leaves_no_file_of_an_earlier_one(hub: StubHub, tmp_path: Path) -> None:
    hub.is_private, hub.files = False, {"adapter_config.json": b"{}", "data/test.parquet": b"", ".gitattributes": b"*"}
    files = exported(tmp_path / "out")
    assert push(tmp_path / "out", "me/first", hub=hub).returncode == 0
    assert hub.files == {**files, ".gitattributes": b"*"}


# ---- in this process -------------------------------------------------------------------------------------------------


@pytest.fixture
def logged_in(hub: StubHub, monkeypatch: pytest.MonkeyPatch) -> StubHub:
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub


def refusal(folder: Path, *words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["push", str(folder), *words]) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_nothing_private_goes_to_a_public_repository(
    logged_in: StubHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = exported(tmp_path / "out")
    logged_in.is_private = False
    told = refusal(tmp_path / "out", "me/first", "--private", capsys=capsys)
    assert "repository must be private, got a public one (envgym push --private); make me/first private" in told
    assert logged_in.files == {}
    assert contents(tmp_path / "out") == files


def test_without_a_login_nothing_is_asked_of_the_hub(
    logged_in: StubHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    exported(tmp_path / "out")
    told = refusal(tmp_path / "out", "me/first", capsys=capsys)
    assert "user must be logged in to the Hub, got no token (envgym push); run `hf auth login`" in told
    assert logged_in.requests == []


def test_offline_nothing_is_asked_of_the_hub(
    logged_in: StubHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    files = exported(tmp_path / "out")
    told = refusal(tmp_path / "out", "me/first", capsys=capsys)
    assert "Hub must be online, got HF_HUB_OFFLINE=1" in told
    assert "the folder is complete and unchanged" in told
    assert logged_in.requests == []
    assert contents(tmp_path / "out") == files


@pytest.mark.parametrize("repo", ["a b/c", "me/first/more", "", "me/", "me/a--b", "me/.a", "me/a.git", "x" * 97])
def test_what_names_no_repository_is_refused_before_anything_else(repo: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^REPO must be name or owner/name"):
        push_folder(tmp_path / "no such folder", repo)


def test_a_hub_that_refuses_is_one_sentence(
    logged_in: StubHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = exported(tmp_path / "out")
    logged_in.refused = {"/api/": HTTPStatus.UNAUTHORIZED}
    sentence = refusal(tmp_path / "out", "me/first", capsys=capsys)
    assert "push must succeed, got " in sentence
    assert "401" in sentence
    assert contents(tmp_path / "out") == files


def test_a_hub_that_is_not_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with stub_hub() as hub:
        url = hub.url
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    exported(tmp_path / "out")
    assert "push must succeed, got ConnectError" in refusal(tmp_path / "out", "me/first", capsys=capsys)


def test_only_exported_folders_without_links_are_pushed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "FOLDER must hold provenance.json and README.md" in refusal(tmp_path, "me/first", capsys=capsys)
    exported(tmp_path / "out")
    (tmp_path / "out" / "more.json").symlink_to("/etc/hostname")
    assert "FOLDER must hold files of its own, got a link, more.json" in refusal(
        tmp_path / "out", "me/first", capsys=capsys
    )
    (tmp_path / "out" / "more.json").unlink()
    monkeypatch.setattr("envgym.export.hub.find_spec", lambda name: None)
    told = refusal(tmp_path / "out", "me/first", capsys=capsys)
    assert "package huggingface_hub must be installed, got none (envgym push); install the extra envgym[hub]" in told
