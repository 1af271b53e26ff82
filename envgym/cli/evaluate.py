"""`envgym eval`: measure a model on tasks that it has not trained on."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from envgym.cli.common import add_json_argument, add_trust_argument, echo, import_from_here, print_json
from envgym.core.tasks import Split
from envgym.errors import SettingsError
from envgym.progress import ProgressDisplay
from envgym.settings import apply_overrides, build_settings, places

if TYPE_CHECKING:
    from envgym.agents.settings import EvalSettings

_WHERE = "envgym eval"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
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
    what.add_argument("--split", default=Split.TEST.value, help="test or train (default: test)")
    what.add_argument("--tasks", type=int, default=100, metavar="N", help="distinct tasks (default: 100)")
    what.add_argument("--samples", type=int, default=1, metavar="K", help="episodes per task (default: 1)")
    help_temperature = "0: greedy (default: 0 for one sample, 1 for several or a search)"
    what.add_argument("--temperature", type=float, metavar="T", help=help_temperature)
    what.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="probability mass to sample from (default: 1)"
    )
    help_top_k = "number of most probable tokens to sample from; 0: all (default: 0)"
    what.add_argument("--top-k", type=int, default=0, metavar="K", help=help_top_k)
    help_metric = "endings, lengths, or your own, such as my_metric.py:MyMetric; repeatable"
    what.add_argument("--metric", metavar="NAME", action="append", default=[], help=help_metric)
    what.add_argument(
        "--success-at", type=float, metavar="R", help="an episode succeeds from this reward on (default: 1)"
    )
    help_invalid = "stop above this share of invalid episodes (default: 0.5)"
    what.add_argument("--max-invalid", type=float, default=0.5, metavar="R", help=help_invalid)
    what.add_argument("--seed", type=int, default=0, help="seed of environments and sampling (default: 0)")
    search = parser.add_argument_group("search")
    help_search = "search strategy: chain (default: one episode per sample), best_of, mcts, my_search.py:MySearch ..."
    search.add_argument("--search", default="chain", metavar="NAME", help=help_search)
    _add_pairs(search, "--search-set", "setting of the search, such as n=8 or budget.tokens_generated=4096")
    how = parser.add_argument_group("execution")
    how.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    how.add_argument("--dtype", help="float32 (default) or bfloat16")
    how.add_argument("--threads", type=int, metavar="N", help="CPU threads")
    how.add_argument("--concurrency", type=int, default=64, metavar="N", help="concurrent episodes (default: 64)")
    how.add_argument(
        "--max-batch", type=int, default=64, metavar="N", help="sequences per sampling batch (default: 64)"
    )
    help_backend = "transformers (default), vllm (with --endpoint: a vLLM server), or path/to/file.py:Class"
    how.add_argument("--backend", default="transformers", help=help_backend)
    how.add_argument(
        "--cache-gib", type=float, default=2.0, metavar="X", help="vllm: memory of the key-value cache (default: 2)"
    )
    how.add_argument("--out", metavar="DIR", help="write here (default: runs/eval-MODEL-ENV)")
    how.add_argument("--resume", action="store_true", help="continue the evaluation in --out, with its own settings")
    add_trust_argument(how)
    add_json_argument(parser)


def _add_pairs(group: "argparse._ArgumentGroup", name: str, text: str) -> None:
    group.add_argument(name, metavar="KEY=VALUE", action="append", default=[], help=f"{text}; repeatable")


def run(args: argparse.Namespace) -> int:
    """Evaluate, and print the results."""
    from envgym.agents.evaluation.run import run_evaluation
    from envgym.cli.results import print_evaluations, run_json

    settings = _settings(args)
    import_from_here(settings.model_dump(mode="json"))
    try:
        with ProgressDisplay() as progress:
            result = run_evaluation(settings, resume=args.resume, on_progress=progress)
    except KeyboardInterrupt:
        if (settings.run.path / "run.json").exists():
            echo(f"interrupted; continue with: envgym eval --out {settings.run.path} --resume", file=sys.stderr)
        raise
    if args.json:
        print_json(run_json(result.directory, result.report))
        return 0
    print_evaluations(result.directory)
    echo(f"report: {result.report}")
    return 0


def _settings(args: argparse.Namespace) -> "EvalSettings":
    """Return the settings that the arguments, and the run that `--model` names, give."""
    from envgym.agents.settings import EvalSettings
    from envgym.api import eval_settings
    from envgym.runs import RunDirectory

    if args.resume and args.model is None and args.out is not None:
        config = RunDirectory.open(args.out, trusted=args.trust).trusted_config()
        return build_settings(EvalSettings, config, where=args.out)
    if args.model is None:
        do = "name a model, a model directory or a run"
        raise SettingsError.of("--model", "be given", "nothing", where=_WHERE, do=do)
    numbers = {name: value for name in ("dtype", "tokenizer") if (value := getattr(args, name)) is not None}
    agent = {} if args.agent is None else {"name": args.agent}
    evaluation = {
        "tasks": args.tasks,
        "samples": args.samples,
        "temperature": _temperature(args),
        "top_p": args.top_p,
        "top_k": args.top_k,
        "split": Split.parse(args.split, where="--split"),
        "max_invalid_rate": args.max_invalid,
        "metrics": args.metric,
        "search": apply_overrides({"name": args.search}, args.search_set, option="--search-set"),
    }
    if args.success_at is not None:
        evaluation["success_at"] = args.success_at
    return eval_settings(
        args.model,
        _envs(args),
        run={"directory": args.out, "seed": args.seed},
        numbers=numbers,
        agent=apply_overrides(agent, args.agent_set, option="--agent-set"),
        engine=_engine(args),
        evaluation=evaluation,
        trusted=args.trust,
        where=_WHERE,
        given=_given(args),
    )


def _given(args: argparse.Namespace) -> dict[str, str]:
    """Return for the settings that an argument gave directly what gave them."""
    sections = {
        "evaluation": ("tasks", "samples", "temperature", "top_p", "top_k"),
        "engine": ("threads", "concurrency", "max_batch", "cache_gib"),
        "model": ("dtype",),
    }
    options = [(section, name) for section, names in sections.items() for name in names]
    given = {f"{section}.{name}": f"--{name.replace('_', '-')}" for section, name in options}
    for part, option in (("agent", "agent"), ("evaluation.search", "search"), ("engine.endpoint", "endpoint")):
        words = getattr(args, f"{option}_set")
        given |= places(words, option=f"--{option}-set", under=f"{part}.")
    return given


def _temperature(args: argparse.Namespace) -> float:
    """Return the temperature that was given; else 1 where several different episodes are wanted, and 0 for one."""
    if args.temperature is not None:
        return float(args.temperature)
    return float(args.samples > 1 or args.search != "chain")


def _engine(args: argparse.Namespace) -> dict[str, Any]:
    """Return what samples; vLLM at an endpoint samples by token ids, any other service by messages."""
    names = ("backend", "device", "threads", "concurrency", "max_batch", "cache_gib")
    engine: dict[str, Any] = {name: getattr(args, name) for name in names}
    if args.endpoint is not None:
        served = {"transformers": "openai", "vllm": "vllm_server"}
        engine["backend"] = served.get(args.backend, args.backend)
        endpoint = {"base_url": args.endpoint, "model": args.model}
        engine["endpoint"] = apply_overrides(endpoint, args.endpoint_set, option="--endpoint-set")
    elif args.endpoint_set or args.tokenizer:
        do, what = "give its URL with --endpoint", "--endpoint-set" if args.endpoint_set else "--tokenizer"
        raise SettingsError.of(what, "go with an endpoint", "none", where=_WHERE, do=do)
    return engine


def _envs(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the envs that are named, each with the settings that are given; without a name they are for all."""
    settings = apply_overrides({}, args.env_set, option="--env-set")
    return [{"id": name, "settings": settings} for name in args.env] or [{"settings": settings}]
