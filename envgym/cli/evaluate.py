"""`envgym eval`: measure a model on tasks that it has not trained on."""

import argparse
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

from envgym.cli.common import add_json_argument, add_trust_argument, import_from_here, option_of, print_json
from envgym.config.settings import apply_overrides, build_settings, places
from envgym.core.tasks import Split
from envgym.errors import SettingsError
from envgym.runtime.processes.interrupts import describe_interrupt_by, describe_saved_episodes
from envgym.runtime.progress import ProgressDisplay

if TYPE_CHECKING:
    from envgym.agents.settings import EvalSettings

_WHERE = "envgym eval"
_ENGINE = ("device", "threads", "concurrency", "max_batch", "cache_gib")
"""Options of the section `engine`; they may change when an evaluation is resumed."""
_SIZE = ("tasks", "samples")
"""Options that may be raised then."""
_NO_SETTINGS = (
    "command",
    "run_command",
    "started",
    "traceback",
    "suite",
    "limit",
    "rescore",
    "overlap",
    "against",
    "model",
    "out",
    "resume",
    "trust",
    "json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    help_suite = "suite: a YAML file, or one of code, math, puzzles, search, tools, web; its cells are evaluated"
    parser.add_argument("suite", metavar="SUITE", nargs="?", help=help_suite)
    who = parser.add_argument_group("model and agent")
    help_model = "tiny, smollm2, a model directory, a hub name, a run, or one of its checkpoints"
    who.add_argument("--model", metavar="NAME|DIR|RUN", help=help_model)
    who.add_argument("--endpoint", metavar="URL", help="use --model of this OpenAI-compatible service")
    help_tokenizer = "tokenizer of a served model (with --endpoint and --backend vllm; default: --model)"
    who.add_argument("--tokenizer", metavar="NAME|DIR", help=help_tokenizer)
    _add_pairs(who, "--endpoint-set", "setting of the endpoint, such as api_key_env=MY_KEY")
    who.add_argument(
        "--agent", metavar="NAME", help="plain, tool_calling, react, code_act, or your own, such as my_agent.py:AGENT"
    )
    _add_pairs(who, "--agent-set", "setting of the agent, such as max_turn_tokens=512")
    what = parser.add_argument_group("tasks and sampling")
    help_env = "environment; repeatable (default: those of the run)"
    what.add_argument("--env", metavar="ID", action="append", default=[], help=help_env)
    _add_pairs(what, "--env-set", "keyword argument of every environment, such as level=3")
    what.add_argument("--split", help="test or train (default: test)")
    what.add_argument("--tasks", type=int, metavar="N", help="distinct tasks (default: 100)")
    what.add_argument("--samples", type=int, metavar="K", help="episodes per task (default: 1)")
    help_temperature = "0: greedy (default: 0 for one sample, 1 for several or a search)"
    what.add_argument("--temperature", type=float, metavar="T", help=help_temperature)
    what.add_argument("--top-p", type=float, metavar="P", help="probability mass to sample from (default: 1)")
    help_top_k = "number of most probable tokens to sample from; 0: all (default: 0)"
    what.add_argument("--top-k", type=int, metavar="K", help=help_top_k)
    help_metric = "maj_at_k, iqm, cost ... (envgym list --kind metric), or your own, my_metric.py:MyMetric; repeatable"
    what.add_argument("--metric", metavar="NAME", action="append", default=[], help=help_metric)
    what.add_argument(
        "--success-at", type=float, metavar="R", help="an episode succeeds from this reward on (default: 1)"
    )
    help_invalid = "stop above this share of invalid episodes (default: 0.5)"
    what.add_argument("--max-invalid", type=float, metavar="R", help=help_invalid)
    what.add_argument("--seed", type=int, help="seed of environments and sampling (default: 0)")
    search = parser.add_argument_group("search")
    help_search = (
        "search strategy: chain (default: one episode per sample), best_of, beam, mcts, my_search.py:MySearch ..."
    )
    search.add_argument("--search", metavar="NAME", help=help_search)
    _add_pairs(search, "--search-set", "setting of the search, such as n=8 or budget.tokens_generated=4096")
    how = parser.add_argument_group("execution")
    how.add_argument("--device", help="cpu, cuda or auto (default)")
    how.add_argument("--precision", help="auto (default: mixed on CUDA, else float32), float32, mixed or bfloat16")
    how.add_argument("--threads", type=int, metavar="N", help="CPU threads")
    how.add_argument("--concurrency", type=int, metavar="N", help="concurrent episodes (default: 64)")
    how.add_argument("--max-batch", type=int, metavar="N", help="sequences per sampling batch (default: 64)")
    help_backend = "transformers (default), vllm (with --endpoint: a vLLM server), or path/to/file.py:Class"
    how.add_argument("--backend", help=help_backend)
    how.add_argument("--cache-gib", type=float, metavar="X", help="vllm: memory of the key-value cache (default: 2)")
    how.add_argument(
        "--out",
        metavar="DIR",
        help="write here (default: runs/eval-MODEL-ENV, with split, search, samples ... where given)",
    )
    how.add_argument("--limit", type=int, metavar="N", help="with a suite: the first N tasks of every cell")
    help_resume = "continue the evaluation in --out with its own settings; --tasks and --samples may be raised"
    how.add_argument("--resume", action="store_true", help=help_resume)
    help_rescore = "score the recorded episodes of --out (a run or a suite) again, by replaying their actions"
    how.add_argument(
        "--rescore", action="store_true", help=f"{help_rescore}; --metric and --success-at replace its own"
    )
    help_overlap = "with a suite: count the evaluated tasks that are known from training, instead of evaluating"
    how.add_argument("--overlap", action="store_true", help=help_overlap)
    help_against = "with --overlap: a training run whose episodes are searched for the tasks; repeatable"
    how.add_argument("--against", metavar="RUN", action="append", default=[], help=help_against)
    add_trust_argument(how)
    add_json_argument(parser)


def _add_pairs(group: "argparse._ArgumentGroup", name: str, text: str) -> None:
    group.add_argument(name, metavar="KEY=VALUE", action="append", default=[], help=f"{text}; repeatable")


def run(args: argparse.Namespace) -> int:
    """Evaluate, and print the results."""
    from envgym.agents.evaluation.run import run_evaluation
    from envgym.cli.results import print_end, print_evaluations, run_json

    if args.rescore:
        from envgym.cli.suites import rescore_command

        return rescore_command(args, _given_options(args))
    if args.overlap:
        from envgym.cli.contamination import overlap_command

        return overlap_command(args, _given_options(args))
    if args.suite is not None:
        from envgym.cli.suites import run_suite_command

        return run_suite_command(args, _given_options(args))
    if args.limit is not None:
        raise SettingsError.of("--limit", "be used with a suite", args.limit, where=_WHERE, do="use --tasks")
    settings = _settings(args)
    import_from_here(settings.model_dump(mode="json"))
    command = f"envgym eval --out {shlex.quote(str(settings.run.path))} --resume"
    describe_interrupt_by(partial(describe_saved_episodes, settings.run.path, command))
    with ProgressDisplay() as progress:
        result = run_evaluation(settings, resume=args.resume, on_progress=progress, started=args.started)
    if args.json:
        print_json(run_json(result.directory, result.report))
        return 0
    print_evaluations(result.directory)
    print_end(result.directory, result.report)
    return 0


def _given_options(args: argparse.Namespace) -> dict[str, Any]:
    names = [name for name in vars(args) if name not in ("suite", "command", "run_command", "started", "traceback")]
    return {name: value for name, value in _given_values(args, *names).items() if value is not False and value != []}


def _settings(args: argparse.Namespace) -> "EvalSettings":
    from envgym.api import eval_settings
    from envgym.runs.directory import RunDirectory

    if args.resume and args.model is None and args.out is not None:
        return _resumed_settings(args)
    if args.model is None:
        do = "name a model, a model directory or a run"
        raise SettingsError.of("--model", "be given", "nothing", where=_WHERE, do=do)
    evaluation = {
        **_given_values(args, *_SIZE, "top_p", "top_k", "success_at"),
        "temperature": _temperature(args),
        "metrics": args.metric,
        "search": apply_overrides({"name": args.search or "chain"}, args.search_set, option="--search-set"),
    }
    if args.split is not None:
        evaluation["split"] = Split.parse(args.split, where="--split")
    if args.max_invalid is not None:
        evaluation["max_invalid_rate"] = args.max_invalid
    settings = eval_settings(
        args.model,
        _envs(args),
        run={"directory": args.out, **_given_values(args, "seed")},
        numbers=_given_values(args, "precision", "tokenizer"),
        agent=apply_overrides({"name": args.agent} if args.agent else {}, args.agent_set, option="--agent-set"),
        engine=_engine(args),
        evaluation=evaluation,
        trusted=args.trust,
        where=_WHERE,
        sources=_given(args),
    )
    if not args.resume:
        return settings
    of_run = RunDirectory.open(settings.run.path).config["evaluation"]
    sizes = {name: of_run[name] for name in _SIZE if getattr(args, name) is None}
    return settings.model_copy(update={"evaluation": settings.evaluation.model_copy(update=sizes)})


def _resumed_settings(args: argparse.Namespace) -> "EvalSettings":
    """Return the settings in `--out` with what may change. Raises: SettingsError: another or a bad option. RunError."""
    from envgym.agents.settings import EvalSettings
    from envgym.runs.directory import RunDirectory

    free = (*_SIZE, *_ENGINE)
    names = [name for name in vars(args) if name not in (*free, *_NO_SETTINGS)]
    if fixed := [option_of(name) for name, value in _given_values(args, *names).items() if value != []]:
        must = f"be among {', '.join(map(option_of, free))} when an evaluation is resumed"
        do = "leave out the others, or start another evaluation"
        raise SettingsError.of("options", must, ", ".join(fixed), where=f"{_WHERE} --resume", do=do)
    config = RunDirectory.open(args.out, trusted=args.trust).trusted_config()
    for section, options in (("evaluation", _SIZE), ("engine", _ENGINE)):
        config[section] = {**config[section], **_given_values(args, *options)}
    return build_settings(EvalSettings, config, where=args.out, sources=_given(args))


def _given_values(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def _given(args: argparse.Namespace) -> dict[str, str]:
    """Return for the settings that an argument gave directly what gave them."""
    sections = {
        "evaluation": (*_SIZE, "temperature", "top_p", "top_k"),
        "engine": _ENGINE,
        "model": ("precision",),
    }
    options = [(section, name) for section, names in sections.items() for name in names]
    sources = {f"{section}.{name}": option_of(name) for section, name in options}
    for part, option in (("agent", "agent"), ("evaluation.search", "search"), ("engine.endpoint", "endpoint")):
        words = getattr(args, f"{option}_set")
        sources |= places(words, option=f"--{option}-set", under=f"{part}.")
    return sources


def _temperature(args: argparse.Namespace) -> float:
    """Return the temperature that was given; else 1 where several different episodes are wanted, and 0 for one."""
    if args.temperature is not None:
        return float(args.temperature)
    return float((args.samples or 1) > 1 or args.search not in (None, "chain"))


def _engine(args: argparse.Namespace) -> dict[str, Any]:
    """Return the engine's settings; vLLM at an endpoint samples by token ids, any other service by messages."""
    engine = _given_values(args, "backend", *_ENGINE)
    if args.endpoint is not None:
        served = {"transformers": "openai", "vllm": "vllm_server"}
        backend = args.backend or "transformers"
        engine["backend"] = served.get(backend, backend)
        endpoint = {"base_url": args.endpoint, "model": args.model}
        engine["endpoint"] = apply_overrides(endpoint, args.endpoint_set, option="--endpoint-set")
    elif args.endpoint_set or args.tokenizer:
        do, what = "give its URL with --endpoint", "--endpoint-set" if args.endpoint_set else "--tokenizer"
        raise SettingsError.of(what, "be used with an endpoint", "none", where=_WHERE, do=do)
    return engine


def _envs(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the envs that are named, each with the settings that are given; without a name they are for all."""
    settings = apply_overrides({}, args.env_set, option="--env-set")
    return [{"id": name, "settings": settings} for name in args.env] or [{"settings": settings}]
