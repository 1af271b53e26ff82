"""How well does a small model judge? Its verdicts against an exact verifier's, and answers without content put to it.

Run: python -m benchmarks.judges [--judge NAME ...] [--model smollm2] [--tasks 100] [--probe-tasks 5] [--report]
Prints one line of JSON, and keeps what every judge did in a file of --out; `--report` writes docs/results/judges.md
from all of them.

Declared before the first run: each held-out problem of `math/arithmetic-v0` (level 1) is answered twice, by its key and
by a number that differs from it by 1 to 9; the exact verifier is `Numeric`, and the judges see the key. An answer is
accepted with a score above 0.5. A judge that gives no score disagrees. With 100 problems, an agreement 10 points from
the 50 % of a coin is detected with probability 0.8. Declared after that run, in which neither judge scored anything:
`calibrated`, a GenerativeVerifier that scores whatever the probability of Yes and No together, and accepts above the
score that agrees most often with the exact verifier on as many train problems.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.progress import track

from benchmarks._options import print_result
from benchmarks._pages import TEMPLATES, template_environment
from benchmarks._study_runs import ROOT
from envgym.agents.policies.parties import LocalParty
from envgym.core.tasks import Split, Task
from envgym.envs.math.arithmetic import Arithmetic
from envgym.errors import InfrastructureError
from envgym.runs.files import write_atomic, write_json
from envgym.seeds import generator
from envgym.stats import Estimate, estimate_success
from envgym.verifiers import GenerativeVerifier, LlmJudge, Numeric, Verifier, red_team_judge

PAGE = ROOT / "docs" / "results" / "judges.md"
ACCEPT_ABOVE = 0.5
JUDGES = ("LlmJudge", "GenerativeVerifier", "calibrated")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeResult:
    """What a judge made of all answers."""

    agreement: Estimate
    right_accepted: Estimate
    wrong_accepted: Estimate
    num_failed: int
    accept_above: float
    probes: Mapping[str, float | None]
    """Probe -> share of the problems for which it was accepted; None: no score came."""


RESULT = TypeAdapter(JudgeResult)


def answers(task: Task) -> tuple[str, str]:
    key, rng = int(str(task.payload["answer"])), generator("judges", task.id)
    return str(key), str(key + int(rng.integers(1, 10)) * int(rng.choice([-1, 1])))


def best_threshold(judge: Verifier, tasks: Sequence[Task]) -> float:
    """Return the score above which a judge agrees most often with the exact verifier, in the middle of a gap."""
    exact = Numeric()
    scored = sorted(
        (judge(answer, task).score, exact(answer, task).score) for task in tasks for answer in answers(task)
    )
    found, most = 1.0, -1.0
    for place in range(len(scored) + 1):
        agreed = sum(right == 0.0 for _, right in scored[:place]) + sum(right == 1.0 for _, right in scored[place:])
        if agreed > most and 0 < place < len(scored):
            found, most = (scored[place - 1][0] + scored[place][0]) / 2, agreed
    return found


def judged(judge: Verifier, tasks: Sequence[Task], *, probe_tasks: int, name: str, accept_above: float) -> JudgeResult:
    exact, failed = Numeric(), 0
    agrees, accepted = dict[str, list[float]](), {True: dict[str, list[float]](), False: dict[str, list[float]]()}
    for task in track(tasks, name, console=Console(file=sys.stderr)):
        for answer in answers(task):
            is_right = exact(answer, task).score == 1.0
            try:
                verdict: bool | None = judge(answer, task).score > accept_above
            except InfrastructureError:
                verdict, failed = None, failed + 1
            agrees.setdefault(task.id, []).append(float(verdict is is_right))
            accepted[is_right].setdefault(task.id, []).append(float(verdict is True))
    probes = red_team_judge(judge, tasks[:probe_tasks], accept_above=accept_above)
    return JudgeResult(
        agreement=estimate_success(agrees),
        right_accepted=estimate_success(accepted[True]),
        wrong_accepted=estimate_success(accepted[False]),
        num_failed=failed,
        accept_above=accept_above,
        probes={result.probe: result.false_positive_rate for result in probes},
    )


def page(results: Mapping[str, JudgeResult], options: argparse.Namespace) -> str:
    environment = template_environment([TEMPLATES])
    environment.globals["shares"] = lambda probe: [_share(of.probes[probe]) for of in results.values()]
    environment.filters.update(estimate=_percent, mean_share=_mean_share, text=partial(json.dumps, ensure_ascii=False))
    environment.filters["code"] = "`{}`".format
    answer = " ".join(_sentence(name, of) for name, of in results.items())
    return environment.get_template("judges.md.jinja").render(answer=answer, results=results, options=options)


def _sentence(name: str, of: JudgeResult) -> str:
    if of.num_failed == of.agreement.num_samples:
        return f"`{name}` gave a score to none of {of.num_failed} answers."
    low, high = of.agreement.interval.low, of.agreement.interval.high
    than = (
        "more often than a coin" if low > 0.5 else "less often than a coin" if high < 0.5 else "no better than a coin"
    )
    return f"`{name}` agrees in {_percent(of.agreement)} %, {than}."


def _percent(estimate: Estimate) -> str:
    interval = estimate.interval
    return f"{100 * estimate.value:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}"


def _mean_share(probes: Mapping[str, float | None]) -> str:
    """Return the mean over the probes that are not blank and got a score."""
    shares = [share for probe, share in probes.items() if share is not None and probe.strip()]
    return f"{100 * sum(shares) / len(shares):.1f}" if shares else "no score"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", nargs="*", choices=JUDGES, default=JUDGES, help="none: report what is kept")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--probe-tasks", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/judges"))
    parser.add_argument("--report", action="store_true", help="write docs/results/judges.md")
    options = parser.parse_args()
    party = LocalParty(path=options.model, max_new_tokens=64)
    source = Arithmetic(level=1).tasks
    tasks, others = (
        [source.task(split, index) for index in range(options.tasks)] for split in (Split.TEST, Split.TRAIN)
    )
    judges: dict[str, Verifier] = {
        "LlmJudge": LlmJudge(judge=party),
        "GenerativeVerifier": GenerativeVerifier(judge=party),
        "calibrated": GenerativeVerifier(judge=party, min_mass=1e-9),
    }
    for name in options.judge:
        accept_above = best_threshold(judges[name], others) if name == "calibrated" else ACCEPT_ABOVE
        found = judged(judges[name], tasks, probe_tasks=options.probe_tasks, name=name, accept_above=accept_above)
        write_json(options.out / f"{name}.json", to_jsonable_python(found))
    known = {name: options.out / f"{name}.json" for name in JUDGES}
    results = {name: RESULT.validate_json(path.read_bytes()) for name, path in known.items() if path.exists()}
    if options.report:
        write_atomic(PAGE, page(results, options))
    print_result("judges", model=options.model, **to_jsonable_python(results))


if __name__ == "__main__":
    main()
