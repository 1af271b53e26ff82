"""Do agents learn the environments? Training on some of them, a few steps on others, and search over proofs.

Run: python -m benchmarks.environments pilot    the pilot's runs, and the minimum detectable effects
     python -m benchmarks.environments run      the declared runs; continues interrupted ones
     python -m benchmarks.environments report   docs/results/environments.md
Without a word it prints one JSON line about the runs that are there. What is compared was declared in
examples/environments/. Each run is a directory under --out, and is not made again.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from pydantic import Field, JsonValue

from benchmarks._environments_page import write_page
from benchmarks._studies import LEVEL, POWER, ROOT, check_declared, evaluated_after, read_declaration, solved, train
from envgym.agents.evaluation.play import EvalRecord
from envgym.cli.main import main as envgym
from envgym.errors import RunError, sentence
from envgym.runs import RunDirectory
from envgym.seeds import generator
from envgym.settings import Settings
from envgym.stats import PairedComparison, compare_paired
from envgym.trainer.settings import load_train_settings

EXAMPLES = ROOT / "examples" / "environments"
CHAIN = "chain"
PAGE = ROOT / "docs" / "results" / "environments.md"


class Trained(Settings):
    """An environment that is trained on; its settings stand in the file of its name."""

    seed: int | None = None
    """Seed of the declared run; None: that of the study."""
    minimum_detectable_effect: float | None = Field(default=None, gt=0, le=1)
    """Difference in held-out success that the declared tasks show with probability 0.8, by the pilot's variance; None:
    not known yet, and the declared run is not made."""


class Search(Settings):
    """Searches at an equal budget of generated tokens, by one trained policy; beside them, single episodes."""

    policy: str
    """The environment whose trained policy searches."""
    tasks: int = Field(ge=1)
    pilot_tasks: int = Field(ge=2)
    budget: int = Field(ge=1)
    """Generated tokens of a search on one task."""
    samples: int = Field(ge=1)
    """Single episodes on one task, whose mean success is told beside the searches."""
    arms: dict[str, tuple[str, ...]]
    """Name of a search -> its settings."""
    baseline: str
    """The search that the others are compared with."""
    minimum_detectable_effect: float | None = Field(default=None, gt=0, le=1)


class Declaration(Settings):
    """What was fixed before the first declared run."""

    seed: int
    pilot_seed: int
    trained: dict[str, Trained]
    search: Search
    few_steps: dict[str, dict[str, JsonValue]]
    """Environment -> its settings, for a run of few_steps.yaml."""


@dataclass(frozen=True, slots=True)
class Study:
    """The runs with one seed."""

    declared: Declaration
    root: Path
    is_pilot: bool = False

    @property
    def seed(self) -> int:
        """The seed of all its runs."""
        return self.declared.pilot_seed if self.is_pilot else self.declared.seed

    def directory(self, name: str) -> Path:
        """Return the directory of a run of training, or of an evaluation by a search."""
        return self.root / f"seed-{self.seed}" / name.replace("/", "-")

    def make(self, parts: Sequence[str]) -> None:
        """Make what is missing of `parts`: environments that are trained on, `search`, `few_steps`."""
        for name in parts:
            if name == "search":
                for arm in (CHAIN, *self.declared.search.arms):
                    self._search(arm)
            elif name == "few_steps":
                for env_id, settings in self.declared.few_steps.items():
                    self._train(name, env_id, {"envs": json.dumps([{"id": env_id, "settings": settings}])})
            else:
                self._train(name, name, seed=None if self.is_pilot else self.declared.trained[name].seed)

    def _train(self, config: str, name: str, sets: dict[str, str] | None = None, *, seed: int | None = None) -> None:
        path, seed = EXAMPLES / f"{config}.yaml", self.seed if seed is None else seed
        every = {"run.seed": seed, "model.tiny.seed": seed, **(sets or {})}
        is_whole = evaluated_after(load_train_settings(path, []).run.steps)
        train(str(path.relative_to(ROOT)), self.directory(name), every, is_whole=is_whole)

    def _search(self, arm: str) -> None:
        """Evaluate one search, unless that is done. Raises: RunError: the evaluation failed."""
        declared, directory = self.declared.search, self.directory(f"search-{arm}")
        if directory.exists() and RunDirectory.open(directory).evals():
            return
        command = self.search_command(arm)
        if envgym([*command[1:], *(["--resume"] if directory.exists() else [])]):
            must, do = "end well", "see above"
            raise RunError(
                sentence(f"search {arm} with {declared.policy}", must, "an error", where=str(directory), do=do)
            )

    def search_command(self, arm: str) -> list[str]:
        """Return the command that evaluates a search."""
        declared = self.declared.search
        command = ["envgym", "eval", "--model", str(self.directory(declared.policy))]
        if arm == CHAIN:
            command += ["--samples", str(declared.samples)]
        else:
            settings = (*declared.arms[arm], f"budget.tokens_generated={declared.budget}")
            command += ["--search", arm, *(word for item in settings for word in ("--search-set", item))]
        # A pilot's tasks are train tasks, so that nobody has seen the held-out ones before.
        command += ["--split", "train"] if self.is_pilot else []
        count = declared.pilot_tasks if self.is_pilot else declared.tasks
        command += ["--tasks", str(count), "--seed", str(self.seed), "--threads", "1"]
        return [*command, "--out", str(self.directory(f"search-{arm}"))]

    def records(self, name: str) -> list[EvalRecord]:
        """Return the evaluations of a run, none where it does not exist."""
        path = self.directory(name)
        return [EvalRecord.from_json(data) for data in RunDirectory.open(path).evals()] if path.exists() else []

    def change(self, name: str) -> PairedComparison | None:
        """Compare held-out success before and after training, task by task; None: the run is not whole."""
        records = self.records(name)
        return _compared(records[0], records[-1], name) if len(records) > 1 else None

    def gain(self, arm: str) -> PairedComparison | None:
        """Compare a search with the baseline, task by task; None: one of them is missing."""
        first, ours = (self.records(f"search-{which}") for which in (self.declared.search.baseline, arm))
        return _compared(first[0], ours[0], arm) if first and ours else None

    def differences(self) -> dict[str, PairedComparison]:
        """Return what was compared, by environment and by search."""
        found = {name: self.change(name) for name in self.declared.trained}
        search = self.declared.search
        found |= {f"search-{arm}": self.gain(arm) for arm in search.arms if arm != search.baseline}
        return {name: paired for name, paired in found.items() if paired is not None}


def _compared(before: EvalRecord, after: EvalRecord, name: str) -> PairedComparison:
    return compare_paired(solved(before), solved(after), rng=generator("environments", name))


def planned_effect(paired: PairedComparison, num_tasks: int) -> float:
    """Return the difference that so many tasks detect with probability `POWER`, by the width of a pilot's interval."""
    interval, z = paired.difference.interval, NormalDist().inv_cdf
    to_edge = z((1 + LEVEL) / 2)
    error = (interval.high - interval.low) / 2 / to_edge * math.sqrt(paired.num_tasks / num_tasks)
    return error * (to_edge + z(POWER))


def _planned_effects(study: Study) -> dict[str, float]:
    counts = {
        name: load_train_settings(EXAMPLES / f"{name}.yaml", []).evaluation.tasks for name in study.declared.trained
    }
    return {
        name: round(planned_effect(paired, counts.get(name, study.declared.search.tasks)), 3)
        for name, paired in study.differences().items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Make runs, or tell of them."""
    declared = read_declaration(Declaration, "environments")
    parts = [*declared.trained, "search", "few_steps"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=("pilot", "run", "report"), help="default: one JSON line")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="parts of the study")
    parser.add_argument("--out", type=Path, default=Path("runs/environments"))
    args = parser.parse_args(arguments)
    study = Study(declared, args.out.resolve(), is_pilot=args.action == "pilot")
    if args.action == "run":
        effects = {name: of.minimum_detectable_effect for name, of in declared.trained.items()}
        effects["search"] = declared.search.minimum_detectable_effect
        check_declared({name: effect for name, effect in effects.items() if name in args.only})
    if args.action in {"pilot", "run"}:
        study.make(args.only)
    if args.action == "report":
        write_page(study, PAGE)
        return
    values = {name: round(paired.difference.value, 4) for name, paired in study.differences().items()}
    print(
        json.dumps(
            {"benchmark": "environments", "differences": values, "minimum_detectable_effects": _planned_effects(study)}
        )
    )


if __name__ == "__main__":
    main()
