"""One message to Coq takes a bounded time, whatever stands in it."""

import time

from tests.envs.math import test_proofs
from tests.envs.math.test_proofs import said, started

pytestmark = test_proofs.pytestmark


def test_one_message_cannot_hold_the_env_for_long() -> None:
    env = started("forall A : Prop, A", tactic_s=2.0, max_turns=100)
    before = said(env, "intros A.")
    for text, answer in {
        "{" * 100_000: "Failed: Write at most 20 bullets and braces in a row.",
        "{ " * 21: "Failed: Write at most 20 bullets and braces in a row.",
        "- " * 50_000: "Failed: Write at most 20 bullets and braces in a row.",
        "x" * 150_000: "Failed: The message has 150000 characters; at most 100000 are read.",
        "((" * 50_000: "Failed: The tactic has 100000 characters; at most 4000 are read.",
    }.items():
        start = time.process_time()
        assert said(env, text) == answer
        assert time.process_time() - start < 1.0
    assert said(env, "idtac.") == before
    said(env, *["{ idtac."] * 40)
    assert said(env, "{ idtac.") == "Failed: At most 40 braces may be open at a time."


def test_all_tactics_of_a_whole_proof_share_a_limit() -> None:
    env = started(mode="proof", proof_s=1.0, attempts=3)
    slow = "do 400000 idtac. "
    result = env.step("intros A B [HA HB]. " + slow * 300 + "split; assumption.")
    assert "takes too long" in result.observation or "take more than 1 s together" in result.observation
    assert env.step("{" * 100_000).observation.startswith("Failed: Write at most 20 bullets and braces in a row.")
    assert env.step("intros A B [HA HB]. split; assumption.").reward == 1.0
