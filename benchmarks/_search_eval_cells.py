"""The policies, values and evaluations of benchmarks/search_eval.py: their commands and results.

What is there already is not made again.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from pydantic import Field

from benchmarks._studies import ROOT, solved
from envgym.agents.evaluation.play import EvalRecord
from envgym.cli.main import main as envgym
from envgym.errors import RunError, sentence
from envgym.files import write_json
from envgym.runs import RunDirectory, read_object
from envgym.settings import Settings
from envgym.stats import PairedComparison, compare_paired
from envgym.trainer.workflows.critic_value import critic

EXAMPLES = ROOT / "examples" / "search_eval"
CHAIN = "chain"


class Pilot(Settings):
    """Evaluations on train tasks that the declared ones were planned with."""

    seed: int
    tasks: int = Field(ge=2)


class Game(Settings):
    """An env whose policy stands in the file of its name."""

    chain_tokens: int | None = Field(default=None, ge=1)
    """Mean generated tokens of an episode, by the pilot; None: not known yet."""
    temperature: float = Field(default=1.0, gt=0)
    """Of the policy, in the episodes of the value's fit and in all evaluations."""
    episodes: int = Field(ge=1)
    """Episodes that the value is fitted to."""
    fit: tuple[str, ...] = ()
    """How it is fitted."""
    minimum_detectable_effect: float | None = Field(default=None, gt=0, le=1)
    """Difference of two searches that the declared tasks show with probability 0.8, by the pilot; None: not known."""


class Arm(Settings):
    """One way to spend the budget."""

    search: str
    set: tuple[str, ...] = ()
    reads_value: bool = False
    """Whether the value of the game leads it."""
    is_oracle: bool = False
    """Whether it chooses by the reward, which no agent sees: a bound, not a result."""


class Declaration(Settings):
    """What was fixed before the held-out tasks were looked at."""

    seed: int
    tasks: int = Field(ge=2)
    factors: tuple[int, ...]
    """Budgets, in mean episodes of the policy."""
    samples: int = Field(ge=1)
    """Episodes of `chain`, whose mean success every search begins at."""
    pilot: Pilot
    compared: tuple[tuple[str, str], ...]
    """Pairs of arms that are tested at the largest budget of every game."""
    arms: dict[str, Arm]
    games: dict[str, Game]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One evaluation: an arm with a budget, of one game."""

    game: str
    arm: str
    factor: int = 1
    is_pilot: bool = False

    @property
    def name(self) -> str:
        """The path of its directory."""
        split = "pilot" if self.is_pilot else "held-out"
        return f"{self.game}/{split}/{self.arm}" + ("" if self.arm == CHAIN else f"-{self.factor}x")


@dataclass(frozen=True, slots=True)
class Bench:
    """Where everything lies, and how it is made."""

    declared: Declaration
    root: Path

    def cells(self, game: str, *, is_pilot: bool) -> Iterator[Cell]:
        """Yield the evaluations of a game; the pilot has the largest budget only."""
        yield Cell(game=game, arm=CHAIN, is_pilot=is_pilot)
        factors = self.declared.factors[-1:] if is_pilot else self.declared.factors
        arms = {arm for pair in self.declared.compared for arm in pair} if is_pilot else self.declared.arms
        for factor in factors:
            yield from (Cell(game=game, arm=arm, factor=factor, is_pilot=is_pilot) for arm in sorted(arms))

    def policy(self, game: str) -> Path:
        """The policy's run."""
        return self.root / game / "policy"

    def value(self, game: str) -> Path:
        """The value's run."""
        return self.root / game / "value"

    def training(self, game: str) -> list[list[str]]:
        """Return the commands that make policy and value."""
        of, policy = self.declared.games[game], str(self.policy(game))
        config = (EXAMPLES / f"{game}.yaml").relative_to(ROOT)
        fit = (f"sampling.temperature={of.temperature:g}", *of.fit)
        sets = [word for item in fit for word in ("--set", item)]
        return [
            ["train", str(config), "--set", f"run.directory={policy}"],
            ["value", policy, "--episodes", str(of.episodes), *sets, "--out", str(self.value(game))],
        ]

    def evaluation(self, cell: Cell) -> list[str]:
        """Return the command of an evaluation."""
        declared, game = self.declared, self.declared.games[cell.game]
        of = declared.pilot if cell.is_pilot else declared
        words = ["eval", "--model", str(self.policy(cell.game)), "--tasks", str(of.tasks), "--seed", str(of.seed)]
        words += ["--temperature", f"{game.temperature:g}"]
        words += ["--split", "train"] if cell.is_pilot else []
        if cell.arm == CHAIN:
            words += ["--samples", str(declared.samples)]
        else:
            arm = declared.arms[cell.arm]
            assert game.chain_tokens is not None, "a search is asked for once the tokens of an episode are declared"
            sets = [*arm.set, f"budget.tokens_generated={cell.factor * game.chain_tokens}"]
            sets += ["value.name=critic", f"value.run={self.value(cell.game)}"] if arm.reads_value else []
            words += ["--search", arm.search, *(word for item in sets for word in ("--search-set", item))]
        return [*words, "--threads", "1", "--out", str(self.root / cell.name)]

    def train(self, game: str) -> None:
        """Make policy and value where they are missing."""
        for command, made in zip(self.training(game), (self.policy(game), self.value(game)), strict=True):
            if not (made / "checkpoints").exists():
                _run(command)

    def evaluate(self, cell: Cell) -> None:
        """Make an evaluation, unless it is there; one that was stopped is made again."""
        directory = self.root / cell.name
        if (directory / "reads.json").exists():
            return
        if directory.exists():  # begun anew: what the value has read before is not known
            shutil.rmtree(directory)
        before = self._tokens_read(cell)
        _run(self.evaluation(cell))
        write_json(directory / "reads.json", {"tokens_read": self._tokens_read(cell) - before})

    def _tokens_read(self, cell: Cell) -> int:
        """Return what the value has read in this process; 0 for an arm that does not ask it."""
        reads = cell.arm != CHAIN and self.declared.arms[cell.arm].reads_value
        return critic(str(self.value(cell.game))).tokens_read if reads else 0

    def record(self, cell: Cell) -> EvalRecord | None:
        """Return the record of an evaluation; None where it is not finished."""
        directory = self.root / cell.name
        if not (directory / "reads.json").exists():
            return None
        (data,) = RunDirectory.open(directory).evals()
        return EvalRecord.from_json(data)

    def reads(self, cell: Cell) -> float:
        """Return the tokens that the value has read, per task."""
        record = self.record(cell)
        assert record is not None, "asked of finished cells"
        return float(read_object(self.root / cell.name / "reads.json")["tokens_read"]) / len(record.rewards)

    def compared(self, before: Cell, after: Cell) -> PairedComparison:
        """Compare two finished evaluations, task by task."""
        first, second = (self.record(cell) for cell in (before, after))
        assert first is not None
        assert second is not None
        return compare_paired(solved(first), solved(second), rng=np.random.default_rng(0))

    def explained(self, game: str) -> float:
        """Return the share of the returns' variance that the value explains on tasks held back from its fit."""
        return float(RunDirectory.open(self.value(game)).metrics()[-1].get("critic/explained_variance", 0.0))


def chain_tokens(bench: Bench, game: str) -> int:
    """Return the mean tokens of an episode of the pilot, rounded up."""
    record = bench.record(Cell(game=game, arm=CHAIN, is_pilot=True))
    assert record is not None, "the pilot has made it"
    return int(np.ceil(record.costs["tokens_generated"]))


def pilot_differences(bench: Bench, game: str, pair: tuple[str, str]) -> list[float]:
    """Return the differences of success of a pair of arms, by task of the pilot."""
    factor = bench.declared.factors[-1]
    cells = (Cell(game=game, arm=arm, factor=factor, is_pilot=True) for arm in pair)
    ours, others = (solved(record) for cell in cells if (record := bench.record(cell)) is not None)
    return [fmean(ours[task]) - fmean(others[task]) for task in ours]


def _run(command: Sequence[str]) -> None:
    print("$ envgym", *command, flush=True)
    if envgym(command):
        raise RunError(sentence("command", "end well", "an error", where=" ".join(command), do="see above"))
