"""The cache: whole or not at all, and safe when two processes build at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from envgym.cache import build_once, cache_directory


def test_the_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.delenv("ENVGYM_CACHE")
    assert cache_directory().name == "envgym"


def test_what_exists_is_not_built_again(tmp_path: Path) -> None:
    built: list[Path] = []

    def build(draft: Path) -> None:
        built.append(draft)
        (draft / "a").write_text("1")

    target = tmp_path / "deep" / "model"
    assert [build_once(target, build), build_once(target, build)] == [target, target]
    assert len(built) == 1
    assert (target / "a").read_text() == "1"
    assert target.stat().st_mode & 0o777 == 0o755


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(draft: Path) -> None:
        (draft / "half").write_text("1")
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        build_once(tmp_path / "model", fail)
    assert list(tmp_path.iterdir()) == []


def test_two_builders_at_once_both_get_a_whole_directory(tmp_path: Path) -> None:
    both = Barrier(2)

    def build(draft: Path) -> None:
        (draft / "a").write_text("1")
        both.wait(timeout=30)
        (draft / "b").write_text("2")

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda _: build_once(tmp_path / "model", build), range(2)))
    assert made == [tmp_path / "model"] * 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "model"]


def test_of_two_builders_the_first_wins(tmp_path: Path) -> None:
    folder = tmp_path / "index"

    def fast(work: Path) -> None:
        (work / "who").write_text("first")

    def slow(work: Path) -> None:
        build_once(folder, fast)
        (work / "who").write_text("second")

    assert (build_once(folder, slow) / "who").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
