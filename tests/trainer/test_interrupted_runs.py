"""A run that is broken off, or extended, and resumed goes on as it would have: weights, metrics, every plug-in."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import PrivateAttr
from safetensors.torch import load_file

from envgym.agents.search import Chain
from envgym.core.trajectory import Group, Trajectory
from envgym.errors import RunError
from envgym.runs.directory import RunDirectory
from envgym.runs.trust import is_trusted
from envgym.stats import Estimate
from envgym.trainer.methods.annotators.base import AnnotateContext
from envgym.trainer.methods.controllers.base import Control, ControlContext
from envgym.trainer.methods.corrections import CorrectionResult, Tis
from envgym.trainer.methods.credit.outcome import DrGrpo
from envgym.trainer.methods.losses import LossBatch, PpoClip, TokenLoss, TokenMean
from envgym.trainer.methods.protocols import FilterResult, TaskRequest, TrajectoryCredit
from envgym.trainer.train import train
from tests.support.graded import LUCKY
from tests.support.tiny_runs import StopAfter, step_metrics, tiny_settings


def newest(folder: Path) -> Path:
    return sorted(RunDirectory.open(folder).checkpoints.iterdir())[-1]


def check_repeats(folder: Path, *, stop: int = 2, **sections: Any) -> Path:
    """See that a run of four steps that is broken off gives what a whole one gives; return its last checkpoint."""
    sections["run"] = {"steps": 4, **sections.get("run", {})}
    train(tiny_settings(folder / "whole", **sections))
    chosen = tiny_settings(folder / "cut", **sections)
    with pytest.raises(KeyboardInterrupt):
        train(chosen, callbacks=[StopAfter(stop)])
    train(chosen, resume=True)
    left_out = ("cost/", "journal/", "speed/")  # what was sampled before is not sampled again
    before, after = (
        [{key: value for key, value in row.items() if not key.startswith(left_out)} for row in step_metrics(run)]
        for run in (folder / "whole", folder / "cut")
    )
    assert after == before
    whole, cut = newest(folder / "whole"), newest(folder / "cut")
    weights = [load_file(place / "model" / "model.safetensors") for place in (whole, cut)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    states, resumed = (
        {str(path.relative_to(place)): json.loads(path.read_text()) for path in place.glob("parts/**/*.json")}
        for place in (whole, cut)
    )
    assert resumed == states
    return cut


IMITATION = {"name": "imitation", "loss": "nll", "coef": 0.1, "sources": ["DEMONSTRATION"]}
AHEAD = {"rollout": {"groups": 3, "group_size": 4, "staleness": 1}}
LEARNING: dict[str, dict[str, Any]] = {
    "bots ahead": {"curriculum": "bots", **AHEAD},
    "bots with demonstrations": {
        "curriculum": "bots",
        "demonstrations": {"episodes": 4, "per_step": 2},
        "objective": {"terms": [IMITATION]},
    },
    "sgpo ahead": {"curriculum": {"name": "sgpo", "samples": 2, "unsolved": 1.0}, **AHEAD},
    "hard_prompts ahead": {"curriculum": {"name": "hard_prompts", "attempts": 1}, **AHEAD},
    "ada_rft ahead": {"curriculum": "ada_rft", **AHEAD},
    "fewer groups": {
        "controllers": [{"name": "stages", "stages": [{"after": {"step": 1}, "settings": {"rollout.groups": 1}}]}],
        **AHEAD,
    },
}


@pytest.mark.parametrize("name", LEARNING)
@pytest.mark.parametrize("stop", [1, 3])
def test_what_was_drawn_and_learned_goes_on(name: str, stop: int, tmp_path: Path) -> None:
    check_repeats(tmp_path, stop=stop, envs=[{"id": LUCKY}], **LEARNING[name])


class Counts:
    """A plug-in whose state is how often it was called, or what different groups or steps it was given."""

    count = 0

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def tick(self, *keys: str) -> None:
        self.keys |= set(keys)
        self.count = len(self.keys) if keys else self.count + 1

    def save(self, folder: Path) -> None:
        (folder / "count.json").write_text(json.dumps({"count": self.count, "keys": sorted(self.keys)}))

    def load(self, folder: Path) -> None:
        data = json.loads((folder / "count.json").read_text())
        self.count, self.keys = data["count"], set(data["keys"])


class Annotate(Counts):
    async def __call__(self, group: Group, context: AnnotateContext) -> Group:
        self.tick()
        return group


class Keep(Counts):
    def __call__(self, groups: Sequence[Group]) -> FilterResult:
        self.tick(*(group.key for group in groups))
        return FilterResult(tuple(groups), ())


class Shape(Counts):
    def __call__(self, group: Group) -> Group:
        self.tick(group.key)
        return group


class Centre(Counts):
    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        self.tick()
        return DrGrpo()(group)


class Allocate(Counts):
    def extend(self, request: TaskRequest, group: Group, *, round: int, step: int) -> TaskRequest | None:
        self.tick()
        return None

    def finish(self, request: TaskRequest, group: Group) -> Group:
        return group


class Weigh(Counts):
    def __call__(self, batch: LossBatch) -> torch.Tensor:
        self.tick()
        return batch.advantages_BT


class Correct(Counts):
    is_identity, only_masks = False, False

    def __call__(self, **given: Any) -> CorrectionResult:
        self.tick()
        return Tis()(**given)


class Clip(Counts):
    def __call__(self, batch: LossBatch) -> TokenLoss:
        self.tick()
        return PpoClip()(batch)


class Mean(Counts):
    def __call__(self, *given: Any, **named: Any) -> torch.Tensor:
        self.tick()
        return TokenMean()(*given, **named)


class Estimator(Counts):
    def __call__(self, log_ratio: torch.Tensor) -> torch.Tensor:
        self.tick()
        return log_ratio.square() / 2


class Steady(Counts):
    def __call__(self, step: int) -> float:
        self.tick(str(step))
        return 0.5


class Measure(Counts):
    def __call__(self, episodes: Sequence[Trajectory]) -> Mapping[str, float | Estimate]:
        self.tick()
        return {"calls": float(self.count)}


class Search(Chain):
    _calls: Counts = PrivateAttr(default_factory=Counts)

    async def grow_tree(self, *given: Any, **named: Any) -> Any:  # as Chain's
        self._calls.tick()
        return await super().grow_tree(*given, **named)

    def save(self, folder: Path) -> None:
        self._calls.save(folder)

    def load(self, folder: Path) -> None:
        self._calls.load(folder)


class Watch(Counts):
    def after_step(self, context: ControlContext) -> Control | None:
        self.tick()
        return Control(settings={"optim.lr": 0.001 / self.count})


def test_the_state_of_every_kind_of_plug_in_is_kept(tmp_path: Path) -> None:
    here = f"{__name__}:"
    term = {"name": "more", "loss": here + "Clip", "aggregation": here + "Mean", "coef": {"name": here + "Steady"}}
    checkpoint = check_repeats(
        tmp_path,
        annotate=[here + "Annotate"],
        filter=here + "Keep",
        shaping=here + "Shape",
        credit=here + "Centre",
        allocator=here + "Allocate",
        weights=[here + "Weigh"],
        correction=here + "Correct",
        loss=here + "Clip",
        search=here + "Search",
        controllers=[here + "Watch"],
        rollout={"metrics": [here + "Measure"]},
        objective={
            "aggregation": here + "Mean",
            "policy_coef": {"name": here + "Steady"},
            "kl_coef": 0.1,
            "kl_estimator": here + "Estimator",
            "terms": [term],
        },
    )
    counts = {path.parent.name: json.loads(path.read_text())["count"] for path in checkpoint.glob("parts/*/count.json")}
    assert set(counts) == {
        *("annotators-0", "filter", "shaping", "credit", "allocator", "weights-0", "correction", "search"),
        *("controllers-0", "metrics-0", "kl_estimator"),
        *(f"objective-{name}{kind}" for name in ("policy", "more") for kind in ("", "-aggregation", "-coef")),
    }
    assert counts["controllers-0"] == counts["metrics-0"] == counts["correction"] == 4, "once a step"
    assert counts["annotators-0"] == counts["filter"] == counts["shaping"] == 4 * 2, "every group"
    assert counts["search"] == 4 * 8, "once an episode"
    assert min(counts.values()) >= 4


def test_extended_run_is_the_longer_run(tmp_path: Path) -> None:
    longer = tmp_path / "longer"
    train(tiny_settings(longer, run={"steps": 3}))
    extended = tmp_path / "extended"
    train(tiny_settings(extended, run={"steps": 2}))
    result = train(tiny_settings(extended, run={"steps": 3, "keep_checkpoints": 3}), resume=True)
    assert result.steps == 3
    assert step_metrics(extended) == step_metrics(longer)
    (line,) = (extended / "history.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 2, "changed": {"run.keep_checkpoints": [2, 3], "run.steps": [2, 3]}}
    assert RunDirectory.open(extended).config["run"]["steps"] == 3
    assert is_trusted(extended), "it is still this user's own"

    kept = (extended / "config.json").read_bytes()
    with pytest.raises(RunError, match=r"run.steps must be at least the 3 that are done, got 1 \("):
        train(tiny_settings(extended, run={"steps": 1, "keep_checkpoints": 3}), resume=True)
    with pytest.raises(RunError, match=r"got changes in \['optim.lr'\] .*; only run.steps, .* may change"):
        train(tiny_settings(extended, run={"steps": 4, "keep_checkpoints": 3}, optim={"lr": 0.5}), resume=True)
    assert (extended / "config.json").read_bytes() == kept


CRITIC = {
    "credit": "gae_token",
    "filter": "keep_all",
    "critic": {"model": "value"},
    "models": {"value": {"kind": {"name": "token_critic", "decay": "cosine"}}},
}


@pytest.mark.parametrize(
    "sections, where",
    [({"optim": {"decay": "linear"}}, "optim.decay=linear"), (CRITIC, "models.value.kind.decay=cosine")],
)
def test_run_of_a_decaying_rate_is_not_extended(tmp_path: Path, sections: Mapping[str, Any], where: str) -> None:
    settings = tiny_settings(tmp_path / "run", run={"steps": 1}, **sections)
    RunDirectory.create(tmp_path / "run", name="test", config=settings.model_dump(mode="json"))
    more = tiny_settings(tmp_path / "run", run={"steps": 2}, **sections)
    with pytest.raises(RunError, match=rf"run.steps must stay as it is .* \({where}\)"):
        train(more, resume=True)
