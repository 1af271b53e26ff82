"""The policy, the value and the evaluations of benchmarks/search_eval.py: their commands and results.

What is there already is not made again; an interrupted evaluation is continued.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, variance

import numpy as np
from pydantic import Field

from benchmarks._studies import ROOT, solved
from envgym.agents.evaluation.play import EvalRecord
from envgym.cli.main import main as envgym
from envgym.errors import RunError, sentence
from envgym.files import write_json
from envgym.runs import RunDirectory
from envgym.settings import Settings
from envgym.stats import PairedComparison, compare_paired, minimum_detectable_effect
from envgym.trainer.workflows.critic_value import critic

EXAMPLES = ROOT / "examples" / "search_eval"
CHAIN = "chain"


class Pilot(Settings):
    """Evaluations on train tasks that the declared ones were planned with."""

    seed: int
    tasks: int = Field(ge=2)
    arms: tuple[str, ...]
    """Whose differences to `chain` give the spread."""


class Fit(Settings):
    """How the value is learned."""

    episodes: int = Field(ge=1)
    set: tuple[str, ...] = ()


class Declaration(Settings):
    """What was fixed before the held-out tasks were looked at."""

    seed: int
    tasks: int = Field(ge=2)
    budget: int = Field(ge=1)
    """Generated tokens on one task."""
    samples: int = Field(ge=1)
    """Episodes of `chain`, whose mean success stands for a budget that is spent without a choice."""
    pilot: Pilot
    level: float = Field(gt=0, lt=1)
    compared: tuple[str, ...]
    """Arms whose difference to `chain` is tested."""
    value: Fit
    minimum_detectable_effect: float | None = Field(default=None, gt=0, le=1)
    """Difference that the declared tasks show with probability 0.8, by the pilot's spread; None: not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to spend the budget."""

    what: str
    """In words."""
    search: str
    settings: tuple[str, ...] = ()
    asks_value: bool = False


def arms(value: Path) -> dict[str, Arm]:
    """Return all arms; `value` is the run of the learned one."""
    return {
        CHAIN: Arm(what="mean of single episodes", search="chain"),
        "majority": Arm(what="`best_of` by majority", search="best_of", settings=("n=null", "select=majority")),
        "likelihood": Arm(what="`best_of` by likelihood", search="best_of", settings=("n=null", "select=likelihood")),
        "value": Arm(
            what="`best_of` by the learned value",
            search="best_of",
            settings=("n=null", "select=value", "value.name=critic", f"value.run={value}"),
            asks_value=True,
        ),
        "mcts": Arm(
            what="`mcts` by the learned value",
            search="mcts",
            settings=("simulations=null", "value.name=critic", f"value.run={value}"),
            asks_value=True,
        ),
        "verifier": Arm(
            what="`best_of` by the reward, **oracle-selected**",
            search="best_of",
            settings=("n=null", "select=reward"),
        ),
    }


@dataclass(frozen=True, slots=True)
class Bench:
    """Where everything lies, and how it is made."""

    declared: Declaration
    root: Path

    @property
    def policy(self) -> Path:
        """The policy's run."""
        return self.root / "policy"

    @property
    def value(self) -> Path:
        """The value's run."""
        return self.root / "value"

    @property
    def arms(self) -> dict[str, Arm]:
        """The arms with this value."""
        return arms(self.value)

    def training(self) -> list[list[str]]:
        """Return the commands that make policy and value."""
        fit = self.declared.value
        sets = [word for item in fit.set for word in ("--set", item)]
        config = (EXAMPLES / "policy.yaml").relative_to(ROOT)
        return [
            ["train", str(config), "--set", f"run.directory={self.policy}"],
            ["value", str(self.policy), "--episodes", str(fit.episodes), *sets, "--out", str(self.value)],
        ]

    def evaluation(self, name: str, *, is_pilot: bool) -> list[str]:
        """Return the command of one arm."""
        declared, arm = self.declared, self.arms[name]
        seed, tasks = (declared.pilot.seed, declared.pilot.tasks) if is_pilot else (declared.seed, declared.tasks)
        split = ["--split", "train"] if is_pilot else []
        settings = [*arm.settings, f"budget.tokens_generated={declared.budget}"]
        how = ["--samples", str(declared.samples)] if arm.search == CHAIN else ["--search", arm.search]
        how += [] if arm.search == CHAIN else [word for item in settings for word in ("--search-set", item)]
        where = ["--threads", "1", "--out", str(self.directory(name, is_pilot=is_pilot))]
        return ["eval", "--model", str(self.policy), *split, "--tasks", str(tasks), "--seed", str(seed), *how, *where]

    def directory(self, name: str, *, is_pilot: bool) -> Path:
        """Return the directory of one evaluation."""
        return self.root / ("pilot" if is_pilot else "held-out") / name

    def train(self) -> None:
        """Make policy and value where they are missing."""
        for command, made in zip(self.training(), (self.policy, self.value), strict=True):
            if not (made / "checkpoints").exists():
                _run(command)

    def evaluate(self, names: Sequence[str], *, is_pilot: bool) -> None:
        """Make the missing evaluations, one that was stopped from where it stopped."""
        for name in names:
            directory = self.directory(name, is_pilot=is_pilot)
            if (directory / "reads.json").exists():
                continue
            before = self._tokens_read(name)
            _run([*self.evaluation(name, is_pilot=is_pilot), *(["--resume"] if directory.exists() else [])])
            write_json(directory / "reads.json", {"tokens_read": self._tokens_read(name) - before})

    def _tokens_read(self, name: str) -> int:
        """Return what the value has read in this process; 0 for an arm that does not ask it."""
        return critic(str(self.value)).tokens_read if self.arms[name].asks_value else 0

    def record(self, name: str, *, is_pilot: bool) -> EvalRecord | None:
        """Return the record of an evaluation; None where it is not finished."""
        directory = self.directory(name, is_pilot=is_pilot)
        if not (directory / "reads.json").exists():
            return None
        (data,) = RunDirectory.open(directory).evals()
        return EvalRecord.from_json(data)

    def compared(self, name: str, *, is_pilot: bool) -> PairedComparison:
        """Compare an arm with `chain`, task by task."""
        before, after = (self.record(which, is_pilot=is_pilot) for which in (CHAIN, name))
        assert before is not None
        assert after is not None
        rng = np.random.default_rng(0)
        return compare_paired(solved(before), solved(after), rng=rng)


def planned_effect(bench: Bench) -> float:
    """Return the difference that the declared tasks can show, by the largest spread of the pilot's differences."""
    declared = bench.declared
    spreads = [variance(differences(bench, name, is_pilot=True)) for name in declared.pilot.arms]
    alpha = declared.level / len(declared.compared)
    return minimum_detectable_effect(declared.tasks, max(spreads), alpha=alpha)


def differences(bench: Bench, name: str, *, is_pilot: bool) -> list[float]:
    """Return an arm's success less that of `chain`, by task."""
    before, after = (bench.record(which, is_pilot=is_pilot) for which in (CHAIN, name))
    assert before is not None
    assert after is not None
    chains, ours = solved(before), solved(after)
    return [fmean(ours[task]) - fmean(chains[task]) for task in chains]


def _run(command: Sequence[str]) -> None:
    print("$ envgym", *command, flush=True)
    if envgym(command):
        raise RunError(sentence("command", "end well", "an error", where=" ".join(command), do="see above"))
