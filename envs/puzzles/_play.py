"""What the puzzles share: how an action is read, and how an argument out of range is refused."""

from envgym.core.messages import Action
from envgym.errors import InvalidInput, sentence
from envgym.verifiers.extract import final


def read_answer(action: Action) -> str:
    r"""Return what is said, in lower case and single-spaced: the marked answer (`\boxed{}`, `<answer>`, `####`) or all.

    Several different marked answers, as nothing at all, are the empty text.
    """
    return " ".join((final(action.content).answer or "").lower().split())


def check_range(name: str, value: int, low: int, high: int, *, where: str) -> None:
    """Refuse a number outside its range. Raises: InvalidInput: it is."""
    if type(value) is not int or not low <= value <= high:
        do = f"pass e.g. {name}={low}"
        raise InvalidInput(sentence(name, f"be a whole number from {low} to {high}", value, where=where, do=do))
