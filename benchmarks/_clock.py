"""A clock on methods and functions."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def timed(owner: object, names: Mapping[str, str]) -> Iterator[dict[str, float]]:
    """Add up the seconds that methods of a class, or functions of a module, take, under the name given for each."""
    spent = dict.fromkeys(names.values(), 0.0)
    before = {name: getattr(owner, name) for name in names}

    def clocked(work: Callable[..., object], phase: str) -> Callable[..., object]:
        def run(*args: object, **kwargs: object) -> object:
            started = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                spent[phase] += time.perf_counter() - started

        return run

    for name, phase in names.items():
        setattr(owner, name, clocked(before[name], phase))
    try:
        yield spent
    finally:
        for name, work in before.items():
            setattr(owner, name, work)
