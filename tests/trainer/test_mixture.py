"""A mixture of envs: each gets its share of the groups, its own metrics and its own evaluation."""

from pathlib import Path

from envgym.runs import RunDirectory
from envgym.trainer.settings import train_settings
from envgym.trainer.train import train

TINY = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "intermediate_size": 64}


def test_envs_share_the_groups_by_weight_and_are_told_apart(tmp_path: Path) -> None:
    settings = train_settings(
        {
            "run": {"directory": str(tmp_path / "run"), "steps": 2, "trackers": []},
            "model": {"name": "tiny", "tiny": TINY},
            "engine": {"device": "cpu"},
            "envs": [
                {"id": "math/arithmetic-v0", "settings": {"level": 1}, "weight": 0.7},
                {"id": "puzzles/guess_number-v0", "weight": 0.3, "name": "guess"},
            ],
            "agent": {"name": "plain", "max_turn_tokens": 4, "max_context_tokens": 512},
            "rollout": {"groups": 5, "group_size": 2},
            "filter": {"name": "keep_all"},
            "evaluation": {"tasks": 2},
        }
    )
    result = train(settings)
    run = RunDirectory.open(tmp_path / "run")
    shares = [(row["envs/math/arithmetic-v0/groups"], row["envs/guess/groups"]) for row in run.metrics()]
    assert [sum(pair) for pair in shares] == [5.0, 5.0]
    assert [sum(column) for column in zip(*shares, strict=True)] == [7.0, 3.0]  # 70 % and 30 % of ten groups
    for row in run.metrics():
        mean = (row["envs/math/arithmetic-v0/reward"], row["envs/guess/reward"])
        episodes = [2 * groups for groups in (row["envs/math/arithmetic-v0/groups"], row["envs/guess/groups"])]
        assert row["rollout/episodes"] == sum(episodes) == 10.0
        assert abs(row["reward/mean"] * 10 - sum(m * n for m, n in zip(mean, episodes, strict=True))) < 1e-9
    episodes_of = [row["env_id"] for row in run.episodes([1, 2], label="train")]
    assert {env_id: episodes_of.count(env_id) for env_id in set(episodes_of)} == {
        "math/arithmetic-v0": 14,
        "puzzles/guess_number-v0": 6,
    }
    assert [(record.label, record.step, len(record.rewards)) for record in result.evaluations] == [
        ("held-out guess", 0, 2),
        ("held-out math/arithmetic-v0", 0, 2),
        ("held-out guess", 2, 2),
        ("held-out math/arithmetic-v0", 2, 2),
    ]
