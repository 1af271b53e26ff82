"""A whole report of a made-up run, built through the public builders: learning on a calculator task."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest

from envgym import Action, Ending, Message, Observation, Role, Scored, Split, Task
from envgym.core.builder import TreeBuilder
from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Edge, Rewrite
from envgym.core.turns import TurnOutcome
from envgym.report.build import Successes, build_comparison, build_episode, build_evaluation, build_metric_row
from envgym.report.data import (
    ComparisonData,
    Declared,
    EpisodeData,
    EvaluationData,
    Meta,
    MetricRow,
    ReportData,
    ToolFailure,
)
from envgym.report.trees import build_tree
from tests.envgym.report.search_tree import HOSTILE, outcome_advantages, search_tree, segment, spoken

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NUM_STEPS = 80
SYSTEM = "You solve arithmetic problems. Use the calculator tool.\n"


def ended(name: str, index: int, version: int, ending: Ending, rng: np.random.Generator) -> Trajectory:
    """Play one made-up episode: a call of the calculator, its reply, an answer that is right or not."""
    a, b, c = (int(value) for value in rng.integers(11, 99, size=3))
    right = rng.random() < 0.3 + 0.6 * version / NUM_STEPS
    task = Task(id=f"train/{index}", prompt=f"What is {a} * {b} - {c}?", payload={"a": [a, b, c]}, split=Split.TRAIN)
    prompt = [
        segment(Origin.TEMPLATE, "<|im_start|>system\n", rng),
        segment(Origin.PROMPT, SYSTEM, rng),
        segment(Origin.TEMPLATE, "<|im_end|>\n<|im_start|>user\n", rng),
        segment(Origin.PROMPT, task.prompt, rng),
        segment(Origin.TEMPLATE, "<|im_end|>\n<|im_start|>assistant\n", rng),
    ]
    tree = TreeBuilder(id=name, env_id="math/arithmetic-v0", task=task, seed=index, prompt=prompt)
    call = f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{a}*{b}-{c}"}}}}\n</tool_call>'
    turn_end = segment(Origin.TEMPLATE, "\n<|im_start|>user\n<tool_response>\n", rng)
    reply = segment(Origin.TOOL, str(a * b - c), rng)
    again = segment(Origin.TEMPLATE, "\n</tool_response><|im_end|>\n<|im_start|>assistant\n", rng)
    thought = f"I should compute {a} * {b} first, then take away {c}.\n"
    node = tree.add(
        tree.root,
        Edge(
            segments=(segment(Origin.POLICY, f"{thought}{call}<|im_end|>", rng, version), turn_end, reply, again),
            ends_turn=True,
        ),
        outcome=TurnOutcome(
            action=Action(thought + call),
            observation=Observation.of([Message(role=Role.TOOL, content=str(a * b - c))]),
            tool_errors=int(not right),
        ),
    )
    if ending.is_error:
        tree.end(node, ending, error=f"the sandbox of the calculator did not start {HOSTILE}")
        return trajectories(tree.freeze())[0]
    value = a * b - c if right else a * b + c
    answer = f"The answer is \\boxed{{{value}}}."
    if index % 5 == 0:
        answer += f" {HOSTILE} \u202egnirts desrever"
    segments: tuple[Segment, ...] = (segment(Origin.POLICY, f"{answer}<|im_end|>", rng, version),)
    if index % 3 == 0:
        segments = (segment(Origin.INJECTED, "Hint: the calculator is right. ", rng), *segments)
    rewrite = Rewrite.TURNS_DROPPED if index % 7 == 0 else None
    if rewrite:
        segments = (segment(Origin.PROMPT, f"{SYSTEM}{task.prompt}\n", rng), *segments)
    reward = Scored(value=1.1 * right, components={"answer": float(right), "format": 0.1 * right})
    tree.add(
        node,
        Edge(segments=segments, ends_turn=True, rewrite=rewrite),
        outcome=TurnOutcome(action=Action(answer), observation=Observation(), reward=reward),
        ending=ending,
    )
    return trajectories(tree.freeze())[0]


def make_episodes(rng: np.random.Generator) -> tuple[EpisodeData, ...]:
    endings = [Ending.TERMINATED] * 5 + [Ending.TRUNCATED_TOKENS, Ending.TRUNCATED_TURNS, Ending.ERROR_TOOL_INFRA]
    episodes = []
    for index in range(48):
        version = index * NUM_STEPS // 48
        trajectory = ended(f"tree-{index}", index, version, endings[index % len(endings)], rng)
        if index % 4 == 3:
            episodes.append(build_episode(trajectory, step=version, source="held-out"))
            continue
        advantages: list[float | tuple[float, ...]] = [0.0, *(float(rng.normal()) for _ in trajectory.path[1:])]
        if index % 4 == 1:  # an advantage per token
            edge = trajectory.tree.nodes[trajectory.path[1]].edge
            advantages[1] = tuple(float(value) for value in rng.normal(size=len(edge.segments[0])))
        trained = trajectory.is_valid
        if not trained:
            episodes.append(build_episode(trajectory, step=version))
            continue
        sampled = [
            sum(len(part) for part in trajectory.tree.nodes[node].edge.segments if part.trains)
            for node in trajectory.path
        ]
        scores = {
            "learner_logprobs": [(-rng.exponential(0.4, size=count)).tolist() for count in sampled],
            "entropies": [rng.exponential(0.5, size=count).tolist() for count in sampled],
            "ratios": [np.exp(0.3 * rng.normal(size=count)).tolist() for count in sampled],
        }
        episodes.append(
            build_episode(trajectory, step=version, trained=True, advantages=advantages, token_scores=scores)
        )
    (of_messages,) = trajectories(spoken("What is 6 * 34?"))
    return (*episodes, build_episode(of_messages, step=NUM_STEPS, source="held-out"))


def make_metrics(rng: np.random.Generator) -> tuple[MetricRow, ...]:
    rows = []
    for step in range(1, NUM_STEPS + 1):
        share = 0.38 + 0.52 / (1 + math.exp(-(step - 30) / 9)) + float(rng.normal()) * 0.025
        share = min(max(share, 0.0), 1.0)
        noise = np.exp(rng.normal(size=10) * 0.12)
        errors = int(rng.poisson(1.5)) / 128
        cut = 0.12 * math.exp(-step / 20) * noise[0]
        rows.append(
            build_metric_row(
                step,
                {
                    "train/success": share,
                    "train/success_low": max(0.0, share - 0.07),
                    "train/success_high": min(1.0, share + 0.07),
                    "reward/mean": 1.1 * share,
                    "reward/answer": share,
                    "reward/format": min(1.0, 0.7 + 0.3 * step / 50) * noise[1] ** 0.2,
                    "reward/length_penalty": -0.2 * math.exp(-step / 30) * noise[2],
                    "filter/kept": 1 - 0.4 * share * noise[0],
                    "filter/zero_variance": 0.4 * share * noise[0],
                    "loss/policy": float(rng.normal()) * 0.02,
                    "loss/entropy": float((0.2 + 0.5 * math.exp(-step / 25)) * noise[3]),
                    "loss/kl_old": float("nan") if step == 41 else float(0.0015 * noise[4]),
                    "loss/kl_reference": float(0.004 * step / 20 * noise[4]),
                    "loss/clip_low": float(0.008 * noise[5]),
                    "loss/clip_high": float(0.02 * noise[5]),
                    "loss/clip_dual": 0.0,
                    "ratio/mean": float(noise[6] ** 0.02),
                    "ratio/min": float(0.7 / noise[6]),
                    "ratio/max": float(1.35 * noise[6]),
                    "logprob_gap/mean_abs": float(2e-4 * noise[7]),
                    "logprob_gap/max_abs": float(9e-4 * noise[7]),
                    "logprob_gap/kl": float(5e-5 * noise[7]),
                    "logprob_gap/truncated": float(0.001 * noise[7]),
                    "logprob_gap/effective_samples": float(0.995 * noise[7] ** 0.01),
                    "optim/grad_norm": float(0.6 * noise[8]),
                    "optim/lr": 1e-5 * min(1.0, step / 10),
                    "optim/updates": 1.0,
                    "rollout/episodes": 128.0,
                    "rollout/turns": float(2.4 - 0.4 * share),
                    "rollout/sampled_tokens": float(95 * noise[9]),
                    "rollout/row_tokens": float(190 * noise[9]),
                    "rollout/row_tokens_max": float(260 * noise[9]),
                    "rollout/tool_calls": float(1.1 * noise[2]),
                    "rollout/tool_errors": float(0.4 * math.exp(-step / 15) * noise[2]),
                    "speed/sampled_tokens_per_s": float(1850 * noise[1]),
                    "ending/TERMINATED": 1 - cut - errors,
                    "ending/TRUNCATED_TOKENS": cut * 0.7,
                    "ending/TRUNCATED_TURNS": cut * 0.3,
                    "ending/ERROR_TOOL_INFRA": errors,
                    "rollout/invalid": errors * 128,
                    "time/collect_s": float(5.1 * noise[2]),
                    "time/learn_s": float(2.4 * noise[3]),
                    "time/sync_s": float(0.3 * noise[4]),
                    "time/save_s": 1.2 if step % 10 == 0 else 0.05,
                    "time/step_s": float(5.1 * noise[2] + 2.4 * noise[3] + 0.3 * noise[4] + 0.1),
                },
            )
        )
    return tuple(rows)


def play(rng: np.random.Generator, chance: float, num_samples: int, difficulty: npt.NDArray[np.float64]) -> Successes:
    """Sample held-out successes; tasks keep their difficulty from one evaluation to the next."""
    found: dict[str, list[bool | None]] = {}
    for index, hardness in enumerate(difficulty):
        p = min(max(chance + hardness, 0.0), 1.0)
        found[f"test/{index}"] = [None if rng.random() < 0.01 else bool(rng.random() < p) for _ in range(num_samples)]
    return found


def make_evaluations(rng: np.random.Generator) -> tuple[tuple[EvaluationData, ...], tuple[ComparisonData, ...]]:
    evaluations, comparisons = [], []
    whole, part = range(0, NUM_STEPS + 1, NUM_STEPS), range(20, NUM_STEPS, 20)
    difficulty = rng.normal(size=300) * 0.28
    for label, num_tasks, num_samples, steps in (
        ("held-out", 300, 1, whole),
        ("during", 100, 1, part),
        ("held-out, 4 samples", 300, 4, whole),
    ):
        played: dict[int, Successes] = {}
        for step in steps:
            chance = 0.34 + 0.58 / (1 + math.exp(-(step - 30) / 9))
            played[step] = play(rng, chance, num_samples, difficulty[:num_tasks])
            total = num_tasks * num_samples
            cut = int(total * (0.12 - 0.0012 * step))
            broken = sum(value is None for values in played[step].values() for value in values)
            evaluations.append(
                build_evaluation(
                    step=step,
                    label=label,
                    greedy=num_samples == 1,
                    successes=played[step],
                    endings={
                        Ending.TERMINATED: total - cut - broken,
                        Ending.TRUNCATED_TOKENS: cut,
                        Ending.ERROR_TOOL_INFRA: broken,
                    },
                    costs={"turns": 2.1, "tokens_generated": 96.4 - step / 4},
                    tool_failures=(
                        ToolFailure(tool="calculator", message="Division by zero.", calls=9, episodes=4),
                        ToolFailure(tool="", message="A call holds no JSON object.", calls=2, episodes=2),
                    ),
                )
            )
        if steps is whole:
            comparisons.append(
                build_comparison(
                    label=label, before_step=0, before=played[0], after_step=NUM_STEPS, after=played[NUM_STEPS], rng=rng
                )
            )
    evaluations.sort(key=lambda evaluation: evaluation.step)
    return tuple(evaluations), tuple(comparisons)


def make_report(seed: int = 0) -> ReportData:
    """Make the demo report; equal seeds make equal reports."""
    rng = np.random.default_rng(seed)
    evaluations, comparisons = make_evaluations(rng)
    tree = search_tree()
    return ReportData(
        meta=Meta(
            name="arithmetic-grpo",
            env_ids=("math/arithmetic-v0",),
            model="SmolLM2-135M-Instruct",
            recipe="grpo",
            agent="tool_calling",
            seeds=(0,),
            created="2026-01-05T12:30:00Z",
            device="2 CPU cores",
            duration_s=3127.0,
            versions={"envgym": "0.1.0", "torch": "2.13.0", "transformers": "5.17.0", "python": "3.11.9"},
            settings="env: math/arithmetic-v0\nrecipe: grpo\noptim:\n  learning_rate: 1.0e-5\n",
            declared=Declared(num_tasks=300, samples_per_task=1, num_seeds=1, minimum_detectable_effect=0.081),
        ),
        metrics=make_metrics(rng),
        evaluations=evaluations,
        comparisons=comparisons,
        episodes=make_episodes(rng),
        trees=(build_tree(tree, step=2, advantages=outcome_advantages(tree)),),
    )


@pytest.fixture(scope="session")
def report() -> ReportData:
    return make_report()


@pytest.fixture
def page(browser: "Browser") -> Iterator["Page"]:
    """A new page; at the end its scripts must have had nothing to complain of and asked for nothing."""
    opened = browser.new_page(viewport={"width": 1400, "height": 1000})
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: None if request.url.startswith("file:") else complaints.append(request.url))
    yield opened
    opened.close()
    assert complaints == []
