"""Laws of filters and sorts: as if every row were looked at by itself."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from envgym.viewer.query import NUMBERS, EpisodeQuery, episode_rows, find_episodes
from envgym.viewer.viewed_run import ViewedRun
from tests.envgym.viewer.conftest import open_read, write_run

QUERIES = st.fixed_dictionaries(
    {},
    optional={
        "text": st.sampled_from(["then", "42", "I ADD", "train/1", "calculator stopped", "zzz", "halving"]),
        "task": st.sampled_from(["train/1", "7", "nothing"]),
        "ending": st.sampled_from(["", "TERMINATED", "ERROR", "TRUNCATED"]),
        "source": st.sampled_from(["", "train", "held-out"]),
        "reward": st.sampled_from(["", "valid", "invalid"]),
        "min_reward": st.sampled_from([0.0, 0.5, 1.0]),
        "max_advantage": st.sampled_from([-0.5, 0.0, 0.4]),
        "min_turns": st.integers(0, 5),
        "max_tokens": st.sampled_from([20, 36, 100]),
        "min_tool_errors": st.integers(0, 2),
        "min_step": st.integers(1, 5),
        "sort": st.sampled_from(["", "task", "ending", *NUMBERS]),
        "descending": st.booleans(),
    },
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> ViewedRun:
    return open_read(write_run(tmp_path_factory.mktemp("viewed") / "run").path)


def fits(row: dict[str, Any], query: EpisodeQuery, words: str) -> bool:
    """Tell whether a row fits, by the definition of each field."""
    for name in NUMBERS:
        low, high = getattr(query, f"min_{name}"), getattr(query, f"max_{name}")
        value = row[name]
        if (low is not None or high is not None) and value is None:
            return False
        if (low is not None and value < low) or (high is not None and value > high):
            return False
    return (
        all(word in words for word in query.text.lower().split())
        and query.task in row["task_id"]
        and row["ending"].startswith(query.ending)
        and query.source in ("", row["source"])
        and (not query.reward or (row["reward"] is None) == (query.reward == "invalid"))
    )


@given(asked=QUERIES)
def test_filters_keep_exactly_the_rows_that_fit(shared: ViewedRun, asked: dict[str, Any]) -> None:
    columns, query = shared.columns, EpisodeQuery(**asked)
    words = columns.table["words"].to_pylist()
    rows = episode_rows(columns, range(len(columns)))
    found = find_episodes(columns, query).tolist()
    expected = [at for at in range(len(columns)) if fits(rows[at], query, words[at])]
    assert sorted(found) == expected
    if query.sort in NUMBERS:
        values = [rows[at][query.sort] for at in found]
        known = [value for value in values if value is not None]
        assert known == sorted(known, reverse=query.descending)
        assert values[: len(known)] == known, "episodes without the value come last"
    elif query.sort:
        key = "task_id" if query.sort == "task" else "ending"
        names = [rows[at][key] for at in found]
        assert names == sorted(names, reverse=query.descending)
    else:
        assert found == (expected[::-1] if query.descending else expected)


def test_words_of_a_search_are_text_and_no_pattern(shared: ViewedRun) -> None:
    assert len(find_episodes(shared.columns, EpisodeQuery(text=".*"))) == 0
    assert len(find_episodes(shared.columns, EpisodeQuery(text="what is"))) > 0
