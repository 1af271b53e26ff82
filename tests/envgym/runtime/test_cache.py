"""The cache: whole or not at all, and safe when two processes build at once; in memory, within a bound of bytes."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier

import pytest

from envgym.runtime.cache import build_once, cache_directory, cached_within, size_of


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


@dataclass(frozen=True, slots=True)
class Pair:
    left: str
    right: tuple[str, ...]


def counted(max_bytes: int) -> tuple[Callable[[int], str], list[int]]:
    asked: list[int] = []

    @cached_within(max_bytes)
    def text(size: int) -> str:
        asked.append(size)
        if size < 0:
            raise ValueError(size)
        return "x" * size

    return text, asked


def test_the_size_is_that_of_all_parts() -> None:
    parts = ["left", "right", ("right",), Pair("left", ("right",))]
    assert size_of(Pair("left", ("right",))) == sum(
        map(sys.getsizeof, (Pair("left", ("right",)), "left", ("right",), "right"))
    )
    assert size_of(parts) == sys.getsizeof(parts) + sum(map(size_of, parts))
    assert size_of({"a": ["b"]}) == sum(map(sys.getsizeof, ({"a": ["b"]}, "a", ["b"], "b")))
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert size_of(deep) > 100_000 * sys.getsizeof([])


def test_the_results_used_last_are_kept_within_the_bound() -> None:
    entry = size_of(((1000,), "x" * 1000))
    text, asked = counted(3 * entry)
    for size in (1000, 999, 998, 1000, 997, 1000, 999):  # 997 takes the place of 999, the one used longest ago
        assert text(size) == "x" * size
    assert asked == [1000, 999, 998, 997, 999]


def test_what_is_larger_than_the_room_is_not_kept_and_displaces_nothing() -> None:
    text, asked = counted(2000)
    for size in (100, 5000, 5000, 100):
        assert len(text(size)) == size
    assert asked == [100, 5000, 5000]


def test_a_failure_is_not_kept() -> None:
    text, asked = counted(2000)
    for _ in range(2):
        with pytest.raises(ValueError, match="-1"):
            text(-1)
    assert asked == [-1, -1]
