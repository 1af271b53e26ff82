"""The page on scaling: what it computes follows from what it says was measured."""

import re

from tests.support.sources import ROOT

PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
EPISODES, CONTEXT, SERVERS, GIGABYTES = 100_000, 4_000, 800, 14
TURN_S = 500 / 40 + 2


def row(name: str) -> list[float]:
    """Return the numbers in the row of a table that begins with a name."""
    (cells,) = re.findall(rf"^\| {re.escape(name)}[^|]*\|(.+)\|$", PAGE, re.MULTILINE)
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", cells)]


def test_limits_of_the_controller_are_those_of_the_model() -> None:
    constant, per_thousand = row("the run's own process")
    turns_per_s = 1e6 / (constant + per_thousand * CONTEXT / 1000)
    needed, has, episodes = row("controller: one event loop")[:3]
    assert needed == round(EPISODES / TURN_S)
    assert has == round(turns_per_s)
    assert episodes == round(turns_per_s * TURN_S, -2)


def test_updates_and_connections_are_those_of_the_model() -> None:
    per_gb, per_server = row("float32 weights of 0.1 to 0.6 GB")
    hours = GIGABYTES * (per_gb + SERVERS * per_server) / 3600
    gigabytes, servers, told = row("update by files")
    assert (gigabytes, servers) == (GIGABYTES, SERVERS)
    assert abs(told - hours) <= 0.2  # the page rounds its constants
    assert row("update by `nccl`")[:2] == [GIGABYTES * SERVERS, GIGABYTES * SERVERS / 50]
    assert row("environment sessions")[:3] == [EPISODES, 512, -(-EPISODES // 512)]
