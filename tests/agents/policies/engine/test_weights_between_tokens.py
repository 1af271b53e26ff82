"""The transformers policy whose weights change while a turn is sampled."""

import threading
from typing import Any

import pytest
import torch

from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.protocols import VersionSpan
from tests.agents.policies.small_models import generate, llama, raw_logits, request


@pytest.mark.parametrize("deterministic", [True, False])
def test_weights_that_change_between_two_tokens_sample_the_rest_of_the_turn(deterministic: bool) -> None:
    model = llama()
    item, steps, is_reached = request((5, 6, 7), max_new_tokens=12), 0, threading.Event()
    policy = TransformersPolicy(model, deterministic=deterministic)
    generate(policy, [request((9, 9))])  # so that the model's own forward pass has been chosen already
    decode = policy._model.decode

    def counted(*arguments: Any) -> torch.Tensor:
        nonlocal steps
        steps += 1
        if steps == 5:
            is_reached.set()
            while not policy._lock.is_held:
                pass
        return decode(*arguments)

    policy._model.decode = counted  # type: ignore[method-assign, assignment]  # of this instance, with any arguments

    def change() -> None:
        is_reached.wait()
        with policy.hold() as rename, torch.no_grad():
            model.lm_head.weight.mul_(1.5)  # the head alone, so that the keys and values are those of both versions
            rename(7)

    changing = threading.Thread(target=change)
    changing.start()
    found = generate(policy, [item])[0]
    changing.join()
    assert (found.policy_version, found.version_spans) == (0, (VersionSpan(0, 5), VersionSpan(7, 7)))
    with policy.pause():
        logits = raw_logits(model, item.token_ids + found.token_ids)[2:-1]
    old, new = (logits / 1.5).log_softmax(-1), logits.log_softmax(-1)
    expected = torch.cat([old[:5], new[5:]]).gather(1, torch.tensor(found.token_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found.behavior_logprobs), expected, atol=2e-6, rtol=0)
    again = generate(policy, [request((5, 6, 7, *found.token_ids))])[0]
    assert (again.policy_version, again.version_spans, again.num_prefilled) == (7, (), 15)
