"""A collected batch in the terminal: tokens by origin, what trains, advantages; and what a train step takes."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from itertools import groupby

from rich.console import Console
from rich.text import Text

from envgym.core.json_types import visible
from envgym.core.segments import Origin, Segment
from envgym.core.turns import Scored
from envgym.trainer.workflows.dry_run import BatchRow, DryRun, StepCost
from envgym.trainer.workflows.overfit import OverfitPoint

ROWS_SHOWN = 8
NOISE_ROWS_SHOWN = 2
"""Where the sampled text is noise, one is as good as another."""
_STYLES = {
    Origin.PROMPT: "cyan",
    Origin.POLICY: "green",
    Origin.TOOL: "yellow",
    Origin.TEMPLATE: "bright_black",
    Origin.INJECTED: "magenta",
    Origin.DEMONSTRATION: "blue",
}
_BYTE = re.compile(r"(\\x[0-9a-f]{2})")
"""Of a token that is a part of a character, as its string shows it."""
_NAME_WIDTH = 9
_ADVANTAGE_WIDTH = 15
_MIB = 2**20


def print_dry_run(result: DryRun) -> None:
    """Print the batch and the estimate."""
    console = Console(highlight=False, soft_wrap=True)
    for number, row in enumerate(result.demonstrations, start=1):
        _print_row(console, row, f"demonstration of warm-start phase {number}")
    if result.rows and result.is_noise:
        console.print("the rows below were sampled from random weights (model tiny): their text is noise\n")
    num_shown = NOISE_ROWS_SHOWN if result.is_noise else ROWS_SHOWN
    for number, row in enumerate(result.rows[:num_shown], start=1):
        _print_row(console, row, f"row {number} of {len(result.rows)}")
    if len(result.rows) > num_shown:
        console.print(f"... and {len(result.rows) - num_shown} more rows\n")
    legend = Text("colours: ")
    for origin, style in _STYLES.items():
        legend.append(origin.value, style=style).append(" ")
    console.print(legend.append("underlined", style="underline").append(" = trains"))
    for name, value in result.counts().items():
        console.print(f"{name.replace('_', ' '):<16}{_shown(value)}")
    if result.rows and not result.batch.rows:
        effect = "as expected of noise" if result.is_noise else "so nothing would train"
        console.print(f"every group was dropped, {effect}: these rows and the estimate are of those groups")
    if result.has_warm_start:
        console.print("rows sampled before the warm start: lengths, rewards and times will differ")
    if result.cost is None:
        console.print("no episode sampled a token: there is nothing to measure")
        return
    for line in _cost_lines(result.cost, result.steps):
        console.print(line)


def _print_row(console: Console, row: BatchRow, name: str) -> None:
    episode, reward = row.episode, row.episode.reward
    paid = f"reward {reward.value:g}" if isinstance(reward, Scored) else "invalid"
    paid = paid if episode.has_reward else "no reward"
    trained = sum(row.train.loss_mask)
    title = f"{name}: {visible(episode.tree.task_id)}, {paid}, {episode.ending.value}, "
    console.print(Text(f"{title}{len(row.row)} tokens, {trained} of them trained", style="bold"))
    place = 0
    for segment in row.row.segments:
        part = slice(place, place + len(segment))
        console.print(_segment_line(segment, row.train.loss_mask[part], row.train.advantages[part]))
        place += len(segment)
    console.print()


def _segment_line(segment: Segment, trains: Sequence[bool], advantages: Sequence[float]) -> Text:
    """Return origin, advantage and text of a segment; each trained token is underlined."""
    style = _STYLES[segment.origin]
    line = Text(f"  {segment.origin.value:<{_NAME_WIDTH}}", style=style)
    trained_advantages = [value for value, trained in zip(advantages, trains, strict=True) if trained]
    line.append(f"{_range(trained_advantages):<{_ADVANTAGE_WIDTH}}", style="bold")
    strings = segment.token_strings or tuple(f"<{token}>" for token in segment.token_ids)
    for trained, tokens in groupby(zip(strings, trains, strict=True), key=lambda token: token[1]):
        text = _decoded(string for string, _ in tokens)
        line.append(_visible(text), style=f"{style} underline" if trained else style)
    return line


def _decoded(strings: Iterable[str]) -> str:
    """Join the strings of tokens; bytes that together make a character become it, and others U+FFFD."""
    parts = (part for string in strings for part in _BYTE.split(string))
    whole = (bytes.fromhex(part[2:]) if _BYTE.fullmatch(part) else part.encode(errors="replace") for part in parts)
    return b"".join(whole).decode(errors="replace")


def _range(values: Sequence[float]) -> str:
    if not values:
        return ""
    low, high = min(values), max(values)
    return f"A {low:+.2f}" if low == high else f"A {low:+.2f}..{high:+.2f}"


def _visible(text: str) -> str:
    return visible(text).replace("\n", "⏎").replace("\t", "\\t")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {count}" for key, count in value.items()) or "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _cost_lines(cost: StepCost, steps: int) -> Iterable[str]:
    state = cost.state
    parts = {
        "weights": state.weights,
        "gradients": state.gradients,
        "optimizer": state.optimizer,
        "activations of the policy (measured)": cost.activations,
    }
    yield "memory          " + ", ".join(f"{name} {size / _MIB:.1f} MiB" for name, size in parts.items())
    yield f"                {cost.memory / _MIB:.1f} MiB at the peak of a train step, beside the sampler's cache"
    yield f"micro-batches   {cost.num_micro_batches} with {cost.computed_tokens} tokens to compute"
    yield f"time per step   {cost.step_s:.2f} s: collect {cost.collect_s:.2f} s (measured), learn {cost.learn_s:.2f} s"
    yield f"                {cost.step_s * steps / 60:.1f} min for {steps} steps, without evaluations"
    yield f"bottleneck      {cost.bottleneck}"
    if cost.devices:
        sizes = ", ".join(f"{name} {size / _MIB:.1f} MiB" for name, size in cost.devices.items())
        yield f"each device     {sizes} (planned, with the sampler's cache)"


# ---- overfit one batch ----------------------------------------------------------------------------------------------

_COLUMNS = ("updates", "surrogate", "log p (A>0)", "log p (A<0)", "ratio", "max ratio", "grad norm")
"""Of the fields of `OverfitPoint`, in their order."""


def overfit_header() -> str:
    """Return the names of the columns."""
    return "  ".join(f"{name:>11}" for name in _COLUMNS)


def overfit_line(point: OverfitPoint) -> str:
    """Return one row."""
    updates, *values = astuple(point)
    numbers = "  ".join(f"{'-':>11}" if value is None else f"{value:>11.4f}" for value in values)
    return f"{updates:>11}  {numbers}"


def overfit_verdict(points: Sequence[OverfitPoint]) -> str:
    """Say whether the policy moved towards the good rows and away from the bad ones."""
    first, last = points[0], points[-1]
    rises = _moved(first.logprob_positive, last.logprob_positive)
    falls = _moved(first.logprob_negative, last.logprob_negative)
    changes = [
        f"A>0 by {rises:+.4f} nats" if rises is not None else "",
        f"A<0 by {falls:+.4f}" if falls is not None else "",
    ]
    good = (rises or 0.0) - (falls or 0.0) > 0
    verdict = "in the right direction" if good else "in the wrong direction: check masks, advantages and optim.lr"
    return f"mean log-prob changed: {', '.join(filter(None, changes))}: {verdict}"


def _moved(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None else last - first
