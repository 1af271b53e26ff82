"""Episodes that a reader plays: as in the environment, bounded in number, and no code that a run names."""

import httpx
import pytest

from envgym.errors import UnknownName
from envgym.registry import make
from envgym.viewer.play import MAX_SESSIONS, PlayTable

ENV_ID = "math/arithmetic-v0"


def begin(client: httpx.Client, **asked: object) -> dict[str, object]:
    reply = client.post("/api/play", json={"env_id": ENV_ID, **asked})
    assert reply.status_code == 200, reply.text
    told: dict[str, object] = reply.json()
    return told


def test_episode_is_played_as_in_the_environment(client: httpx.Client) -> None:
    made = begin(client, seed=3)
    env = make(ENV_ID)
    assert made["observation"] == env.reset(seed=3, options={"split": "train"}).observation
    turn = client.post(f"/api/play/{made['session']}", json={"text": "/calculator 6*7"}).json()
    assert (turn["observation"], turn["ending"]) == ("42", None)
    assert env.step(turn["action"]).observation == "42"
    last = client.post(f"/api/play/{made['session']}", json={"is_oracle": True}).json()
    while last["ending"] is None:
        last = client.post(f"/api/play/{made['session']}", json={"is_oracle": True}).json()
    assert (last["ending"], last["reward"]) == ("TERMINATED", 1.0)
    env.close()
    over = client.post(f"/api/play/{made['session']}", json={"text": "5"})
    assert over.status_code == 404
    assert over.json()["detail"].startswith("episode must be under way, got one that has ended")


def test_text_that_is_no_action_is_one_sentence_and_the_episode_goes_on(client: httpx.Client) -> None:
    session = begin(client)["session"]
    reply = client.post(f"/api/play/{session}", json={"text": "/calculater 1"})
    told = "no tool calculater; did you mean /calculator? Begin with // to say it as text."
    assert (reply.status_code, reply.json()) == (200, {"refused": told})
    assert client.post(f"/api/play/{session}", json={"text": "/calculator 1"}).json()["observation"] == "1"


@pytest.mark.parametrize("env_id", ["package.module:Class", "file.py:Class", "http://127.0.0.1:1/x"])
def test_code_that_a_run_names_is_not_executed(client: httpx.Client, env_id: str) -> None:
    for reply in (client.post("/api/play", json={"env_id": env_id}), client.post("/api/env", json={"env_id": env_id})):
        assert reply.status_code == 422
        assert reply.json()["detail"].startswith("environment must be a registered id to be shown or played here")


def test_card_has_facts_and_an_episode_of_the_oracle(client: httpx.Client) -> None:
    card = client.post("/api/env", json={"env_id": ENV_ID}).json()
    assert (card["id"], card["reward_range"]) == (ENV_ID, [0.0, 1.0])
    assert card["example"][-1][1].endswith("[TERMINATED, reward 1]")
    unknown = client.post("/api/env", json={"env_id": "math/arithmetic-v9"})
    assert unknown.status_code == 404
    assert "did you mean" in unknown.json()["detail"]


def test_episodes_that_nobody_plays_give_way_first() -> None:
    table = PlayTable()
    try:
        played = table.open(ENV_ID)
        played.begin(0, "train")
        played.step("/calculator 1", is_oracle=False)
        others = [table.open(ENV_ID) for _ in range(3 * MAX_SESSIONS)]
        assert table.get(played.id) is played, "it was played"
        assert table.get(others[-1].id) is others[-1]
        with pytest.raises(UnknownName, match="episode must be under way"):
            table.get(others[0].id)
    finally:
        table.close()
