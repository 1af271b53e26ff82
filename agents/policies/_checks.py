"""What every sampling engine requires of a request."""

from envgym.agents.protocols import GenerateRequest, Sampling
from envgym.errors import InvalidInput, PolicyFailure, sentence


def check_sampling(sampling: Sampling, where: str) -> None:
    """Raises: InvalidInput: a setting out of range."""
    in_range = {
        "temperature": sampling.temperature >= 0,
        "top_p": 0 < sampling.top_p <= 1,
        "top_k": sampling.top_k >= 0,
        "max_new_tokens": sampling.max_new_tokens >= 1,
    }
    if wrong := [name for name, is_good in in_range.items() if not is_good]:
        got, do = getattr(sampling, wrong[0]), "see Sampling"
        raise InvalidInput(sentence(wrong[0], "be in range", got, where=where, do=do))


def check_context(request: GenerateRequest, *, limit: int, positions: int | None, where: str) -> None:
    """See that there is a context with room after it.

    Args:
        request: to be served.
        limit: tokens that may be sampled.
        positions: all that context and sample have, for the sentence.
        where: the policy.

    Raises: InvalidInput: an empty context. PolicyFailure: no position is left.
    """
    if not request.token_ids:
        raise InvalidInput(sentence("context", "hold a token", "none", where=where, do="render a prompt"))
    if limit < 1:
        rule, got = f"leave one of the model's {positions} positions", f"{len(request.token_ids)} tokens"
        raise PolicyFailure(sentence("context", rule, got, where=where, do="lower max_context_tokens"))
