"""Do later rounds of self-training beat the first one? ReST-MCTS*'s loop and AgentPRM, each against its own round 1.

Run: python -m benchmarks.self_training [--out runs/self_training] [--rounds 3]
Prints one line of JSON. Declared before the first run: both methods begin with the same policy of 0.5 million
parameters, warm-started on `math/arithmetic-v0` (level 1, expressions, with the calculator) until 35 % of train
episodes succeed; the last round's policy is compared with the first round's on 200 held-out tasks, one sampled episode
each at temperature 1, paired by task, with a 95 % interval. One seed; nothing was tuned. A stopped study resumes.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._options import print_result, read_options
from benchmarks._study_statistics import solved
from envgym.agents.evaluation.play import EvalRecord
from envgym.runs.directory import RunDirectory
from envgym.seeds import generator
from envgym.stats import compare_paired
from envgym.trainer.methods.self_training.agent_prm import AgentPrmRounds
from envgym.trainer.methods.self_training.base import SelfTrainingPlan
from envgym.trainer.methods.self_training.rest_mcts import RestMctsRounds
from envgym.trainer.self_training import RoundRuns, self_train
from envgym.trainer.settings import TrainSettings, train_settings

SCORER = {
    "optim": {"epochs": 2, "minibatches": 32, "lr": 0.001, "micro_batch_tokens": 16384},
    "critic": {"detach": False, "lr": 0.02, "coef": 1.0},
}


def settings(directory: Path) -> TrainSettings:
    """Return the first policy's settings; the rounds take over what their method does not choose."""
    data: dict[str, Any] = {
        "run": {"directory": str(directory), "steps": 0, "checkpoint_every": 15, "trackers": []},
        "model": {"name": "tiny", "tiny": {"num_layers": 2}},
        "engine": {"device": "cpu", "threads": 1, "concurrency": 128, "max_batch": 128},
        "agent": {"name": "tool_calling", "max_turn_tokens": 64, "max_context_tokens": 512},
        "envs": [{"id": "math/arithmetic-v0", "settings": {"level": 1, "kinds": ["expression"]}}],
        "sft": {
            "episodes": 6000,
            "batch_size": 8,
            "lr": 0.003,
            "until_success": 0.35,
            "check_every": 25,
        },
        "rollout": {"groups": 16, "group_size": 8},
        "optim": {"lr": 0.0005, "decay": "linear", "micro_batch_tokens": 16384},
        "evaluation": {"tasks": 200, "temperature": 1.0},
    }
    return train_settings(data)


def plans() -> dict[str, SelfTrainingPlan]:
    return {
        "rest_mcts": RestMctsRounds(search={"simulations": 8}, sft={"batch_size": 8, "lr": 0.001}, min_value=-1.0),
        "agent_prm": AgentPrmRounds(update="reinforce", sections={"run": {"steps": 15}}),
    }


def compared(rounds: Sequence[RoundRuns]) -> dict[str, object]:
    """Return the success of every round's policy, and the last against the first."""
    of_rounds = [solved(EvalRecord.from_json(RunDirectory.open(runs.policy).evals()[-1])) for runs in rounds]
    paired = compare_paired(of_rounds[0], of_rounds[-1], rng=generator("self_training"))
    interval = paired.difference.interval
    return {
        "success": [sum(map(sum, found.values())) / sum(map(len, found.values())) for found in of_rounds],
        "last_less_first": paired.difference.value,
        "interval": [interval.low, interval.high],
        "p_value": paired.p_value,
    }


def main() -> None:
    options = read_options(__doc__, out=Path("runs/self_training"), rounds=3)
    figures: dict[str, object] = {}
    shared = options.out / "first"
    for name, plan in plans().items():
        root = options.out / name
        if shared.exists() and not (root / "round-00").exists():
            shutil.copytree(shared, root / "round-00")
        asked = settings(root)
        rounds = self_train(asked, plan, rounds=options.rounds, episodes=512, scorer=SCORER)
        if not shared.exists():
            shutil.copytree(root / "round-00", shared)
        figures["first_policy"] = compared([RoundRuns(root, shared / "policy")])["success"]
        figures[name] = compared(rounds)
    print_result("self_training", rounds=options.rounds, **figures)


if __name__ == "__main__":
    main()
