"""Who may have the model, and in which order."""

import threading

import pytest

from envgym.agents.policies._turnstile import Turnstile


def test_a_change_goes_before_those_who_use_it_again_and_again() -> None:
    turn, used, ends = Turnstile(), threading.Event(), threading.Event()
    uses = begun_though_wanted = 0

    def use() -> None:
        nonlocal uses, begun_though_wanted
        while not ends.is_set():
            with turn.using():
                uses += 1
                begun_though_wanted += turn.is_wanted
                used.set()

    worker = threading.Thread(target=use)
    worker.start()
    assert used.wait(10)
    for _ in range(20):
        with turn.changing():
            held = uses
            assert turn.is_wanted
            threading.Event().wait(0.002)
            assert uses == held  # nobody uses it meanwhile
    ends.set()
    worker.join(10)
    assert not turn.is_wanted
    assert begun_though_wanted <= 2 * 20  # the one under way, and one that was through the door already


def test_a_failed_change_lets_the_others_in() -> None:
    turn = Turnstile()
    with pytest.raises(RuntimeError), turn.changing():
        raise RuntimeError
    with turn.using():
        assert not turn.is_wanted
