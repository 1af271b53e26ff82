"""`envgym export`: a recorded run as a folder that other projects read."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from envgym.cli.common import add_json_argument, at_least_0, check_options, echo, not_negative, print_json
from envgym.cli.export_model import MODEL_OPTIONS, add_model_arguments, export_model_command
from envgym.errors import check_known

if TYPE_CHECKING:
    from envgym.export.episodes import EpisodeChoice
    from envgym.export.rows import DataKind
    from envgym.runs.directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportKind:
    """What a run can be exported as."""

    help: str
    """What the folder holds, for the help text."""
    options: tuple[str, ...]
    """Arguments that have a meaning for this kind, by their names in the parsed command line."""
    export: Callable[[argparse.Namespace], Mapping[str, Any]]
    """Write the folder and return what it holds, as JSON, with its path as `folder`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("run", metavar="RUN", help="directory that `envgym train` or `envgym eval` wrote")
    parser.add_argument("kind", metavar="KIND", help=f"one of {', '.join(KINDS)}; see below")
    parser.add_argument("out", metavar="OUT", type=Path, help="new or empty folder")
    add_json_argument(parser)
    _add_data_arguments(parser.add_argument_group("data sets"))
    add_model_arguments(parser.add_argument_group("model"))
    kinds = "\n".join(f"  {name:<12} {kind.help}" for name, kind in KINDS.items())
    parser.epilog = f"kinds:\n{kinds}\n\n{parser.epilog or ''}"


def run(args: argparse.Namespace) -> int:
    """Write the folder, and print what it holds."""
    check_known("kind of export", args.kind, KINDS, where="envgym export")
    kind = KINDS[args.kind]
    shared = {"run", "kind", "out", "json", "command", "run_command", "started", "traceback"}
    options = [name for name, value in vars(args).items() if name not in shared and value not in (None, False)]
    check_options(options, kind.options, where=f"envgym export RUN {args.kind}", do="leave out the others")
    result = kind.export(args)
    if args.json:
        print_json(result)
        return 0
    for name, value in result.items():
        if value not in (None, {}, ()):
            echo(f"{name.replace('_', ' '):<12} {_text(value)}")
    return 0


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


# ---- data sets -------------------------------------------------------------------------------------------------------


def _add_data_arguments(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--label", help="episodes of training (train), or of the evaluation with this label")
    group.add_argument("--steps", metavar="A-B", help="only episodes of these train steps, such as 10-20, 10- or 10")
    group.add_argument(
        "--only", choices=("all", "valid", "success"),
        help="episodes to export: all, those with a valid reward (default), or those that succeeded",
    )  # fmt: skip
    text = "reward from which an episode succeeded (default: evaluation.success_at of the run)"
    group.add_argument("--success-at", type=float, metavar="REWARD", help=text)
    group.add_argument("--per-task", type=at_least_0, metavar="N", help="at most N rows per task; the first are kept")
    text = "also export episodes of test tasks; models trained on them must not be evaluated on these tasks"
    group.add_argument("--include-test", action="store_true", help=text)
    group.add_argument("--redact", metavar="FILE:FUNCTION", help="function of a text that returns the text to export")
    group.add_argument("--format", choices=("parquet", "jsonl"), help="format of the data files (default: parquet)")
    text = "preferences: least difference of the rewards of chosen and rejected (default: any)"
    group.add_argument("--min-margin", type=not_negative, metavar="REWARD", help=text)
    text = "preferences: the best against the worst sibling (extremes, default), or all pairs of different reward"
    group.add_argument("--pairs", choices=("extremes", "all"), help=text)
    text = "preferences: compare the rest of the episode (episode, default), or one assistant message (turn)"
    group.add_argument("--span", choices=("episode", "turn"), help=text)


_CHOICE: Final = ("label", "steps", "only", "success_at", "per_task", "include_test", "format")
"""Options of every kind of data set."""


def _data(kind: str) -> Callable[[argparse.Namespace], Mapping[str, Any]]:
    def export(args: argparse.Namespace) -> Mapping[str, Any]:
        from envgym.export.dataset import export_data
        from envgym.export.redaction import load_redaction
        from envgym.export.rows import RowOptions
        from envgym.runs.directory import RunDirectory
        from envgym.runtime.progress import ProgressDisplay

        run = RunDirectory.open(args.run)
        names = ("min_margin", "pairs", "span")
        row_options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
        redact = None if args.redact is None else load_redaction(args.redact)
        options = RowOptions(choice=_episode_choice(args, run), redact=redact, **row_options)
        with ProgressDisplay() as progress:
            return export_data(
                run,
                data_kind(kind),
                args.out,
                options,
                format=args.format or "parquet",
                per_task=args.per_task,
                on_progress=progress,
            )

    return export


def data_kind(name: str) -> "DataKind":
    """Return a kind of data set by its name."""
    kind: DataKind = import_module(f"envgym.export.{name}").KIND
    return kind


def _episode_choice(args: argparse.Namespace, run: "RunDirectory") -> "EpisodeChoice":
    from envgym.export.episodes import EpisodeChoice, parse_steps

    first, last = parse_steps(args.steps)
    success_at = args.success_at
    if success_at is None:
        success_at = run.config.get("evaluation", {}).get("success_at", 1.0)
    return EpisodeChoice(
        label=args.label or "train",
        first_step=first,
        last_step=last,
        only=args.only or "valid",
        success_at=success_at,
        includes_test=args.include_test,
    )


KINDS: Final[Mapping[str, ExportKind]] = MappingProxyType(
    {
        "chat": ExportKind(
            help="conversations with tools in OpenAI's form, for supervised fine-tuning",
            options=(*_CHOICE, "redact"),
            export=_data("chat"),
        ),
        "sharegpt": ExportKind(
            help="the same conversations in ShareGPT's form",
            options=(*_CHOICE, "redact"),
            export=_data("sharegpt"),
        ),
        "preferences": ExportKind(
            help="pairs of a better and a worse answer to one context, for DPO",
            options=(*_CHOICE, "redact", "min_margin", "pairs", "span"),
            export=_data("preferences"),
        ),
        "steps": ExportKind(
            help="turns with labels, rewards and advantages, for process reward models",
            options=(*_CHOICE, "redact"),
            export=_data("steps"),
        ),
        "tokens": ExportKind(
            help="token ids with mask, log-probs and advantages, as training reads them",
            options=_CHOICE,
            export=_data("tokens"),
        ),
        "model": ExportKind(
            help="a trained checkpoint as a Hugging Face directory, adapters merged, with its card",
            options=MODEL_OPTIONS,
            export=export_model_command,
        ),
    }
)
"""Name -> kind of export."""
