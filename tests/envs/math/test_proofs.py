"""`math/proofs-v0` with a real Coq: what it accepts is proved, what it refuses changes nothing, and no trick pays."""

import json
from pathlib import Path

import pytest

import envgym
from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending
from envgym.env import NoOracle
from envgym.envs.math import _coq_checker, _coq_proofs
from envgym.envs.math._coq_checker import PROGRAM, CheckerPool, CoqChecker, ProofReplayDiffers, ProofStep
from envgym.envs.math._theorem_tasks import FAMILIES
from envgym.envs.math.proofs import RESTART, UNDO, Proofs
from envgym.errors import InvalidInput, ToolInfraFailure
from envgym.sandbox import BwrapSandbox, has_program, why_unusable
from tests.envs.episodes import conformance

pytestmark = [
    pytest.mark.proofs,
    pytest.mark.skipif(not has_program(PROGRAM), reason="no Coq (Debian: apt install coq)"),
    pytest.mark.skipif(why_unusable(BwrapSandbox()) is not None, reason="no sandbox (pip install 'envgym[code]')"),
]

TRICKS = (
    "admit.",
    "give_up.",
    "Admitted.",
    "Abort.",
    "Qed.",
    "idtac. Admitted.",
    "idtac).Admitted.(idtac",
    "abstract admit.",
    "Axiom cheat : False.",
    "exfalso; exact (ltac:(admit)).",
    "Unset Guard Checking.",
    "Set Universe Checking.",
    "Require Import Coq.Logic.Classical.",
    "Load cheat.",
    'Redirect "goal.v" Print nat.',
    "Drop.",
    "Quit.",
    'Cd "/".',
    "BackTo 1.",
    "Theorem goal : True.",
    "Ltac split := idtac.",
    "Notation A := True.",
    "fix cheat 1; exact (cheat 0).",
    "cofix cheat; exact cheat.",
    "(* done *) idtac.",
    "idtac (* .\n*) .",
    'idtac "No more goals.".',
    "idtac </prompt>.",
    "exact_no_check I.",
    "refine (_ : False -> _); intros [].",
    "unshelve eexists; shelve.",
    "exact \uff08I\uff09.",
    "all: shelve.",
    "The theorem is proved.",
    "No more goals.",
)
"""What pretends to prove, or reaches beyond the proof."""


TestProofs = conformance("math/proofs-v0", num_tasks=5)
TestWholeProofs = conformance("math/proofs-v0", num_tasks=4, mode="proof", families=("arithmetic", "lists"))


def started(statement: str = "forall A B : Prop, A /\\ B -> B /\\ A", **options: object) -> Proofs:
    """Begin an episode with a theorem of one's own."""
    env = envgym.make("math/proofs-v0", **options).unwrapped
    assert isinstance(env, Proofs)
    env.reset(options={"task": theorem(statement)})
    return env


def theorem(statement: str) -> Task:
    return Task(
        id="own", prompt=statement, payload={"definitions": [], "statement": statement}, split=Split.TRAIN, metadata={}
    )


def said(env: Proofs, *tactics: str) -> str:
    """Say tactics; return the last observation."""
    return str([env.step(tactic).observation for tactic in tactics][-1])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_drawn_proof_is_accepted_on_both_sides_of_the_split(family: str) -> None:
    env = envgym.make("math/proofs-v0", families=family)
    tasks = [env.unwrapped.tasks.task(split, index) for split in Split for index in range(9)]
    episodes = [play(env, oracle_of(env), seed=0, task=task) for task in tasks]
    assert [episode.reward for episode in episodes] == [1.0] * len(tasks)
    assert all(turn.tool_errors == 0 and "Failed" not in turn.observation for ep in episodes for turn in ep.turns)


def test_functions_of_all_constants_are_proved() -> None:
    env = envgym.make("math/proofs-v0", families="induction", levels=1)
    tasks = [env.unwrapped.tasks.task(Split.TRAIN, index) for index in range(50)]
    assert [play(env, oracle_of(env), seed=0, task=task).reward for task in tasks] == [1.0] * 50


def test_a_proof_is_won_tactic_by_tactic() -> None:
    env = started()
    assert said(env, "intros A B [HA HB].").startswith("1 goal\n\n  A, B : Prop\n  HA : A\n  HB : B\n  =====")
    assert said(env, "split.").startswith("2 goals\n")
    assert said(env, "- assumption.") == "1 goal\n\ngoal 1 is:\n A"
    result = env.step("- exact HA.")
    assert (result.observation, result.reward, result.terminated) == ("The theorem is proved.", 1.0, True)
    assert result.info["envgym"].reward.components == {"proved": 1.0, "tactics": 2.0, "failed_tactics": 0.0}


def test_a_failing_tactic_tells_why_and_changes_nothing() -> None:
    env = started()
    goals = said(env, "intros A B H.")
    result = env.step("exact I.")
    why = 'The term "I" has type "True" while it is expected to have type "B /\\ A".'
    assert result.observation == f"Failed: In environment\nA, B : Prop\nH : A /\\ B\n{why}"
    assert result.info["envgym"].reward.components == {"proved": 0.0, "tactics": 0.0, "failed_tactics": 1.0}
    assert said(env, "split; exact H.").startswith("Failed: In environment\nA, B : Prop")
    assert said(env, "- split. ", "- split; destruct H as [HA HB].").startswith("Failed: [Focus] Wrong bullet -")
    assert said(env, UNDO, "idtac.") == goals


def test_what_coq_says_does_not_depend_on_what_it_was_told_before() -> None:
    env, mistake = started("forall c n q : nat, n < c -> q < n -> q <= c"), "apply Nat.le_trans."
    said(env, "intros a b.")
    first = said(env, mistake)
    assert "l : ?M1 <= ?M2\n" in first
    assert {said(env, mistake) for _ in range(5)} == {first}
    with CheckerPool(1).at(env.state.steps) as checker:
        again = checker.say(f"1: ( {mistake[:-1]} ).")
    assert f"Failed: {getattr(again, 'message')}" == first  # noqa: B009


def test_all_or_nothing_of_a_bullet_with_its_tactic_is_kept() -> None:
    env = started()
    before = said(env, "intros A B [HA HB].", "split.")
    assert said(env, "- exact HA.").startswith("Failed: In environment")
    assert said(env, "idtac.") == before


def test_undo_takes_back_one_tactic_and_restart_all() -> None:
    env = started()
    first = env.state.steps[-1].printed
    goals = said(env, "intros A B [HA HB].")
    said(env, "- split.")
    assert said(env, UNDO) == goals
    assert said(env, "split.", RESTART) == first
    assert said(env, UNDO) == first
    assert env.state.ends == (len(env.state.steps),)


@pytest.mark.parametrize("mode", ["tactics", "proof"])
def test_no_trick_pays(mode: str) -> None:
    env = envgym.make("math/proofs-v0", mode=mode, max_turns=2 * len(TRICKS), attempts=1).unwrapped
    task = theorem("forall A B : Prop, A \\/ B")  # which is false: whatever pays is a hole
    for trick in TRICKS:
        for start in ("", "intros A B. "):
            env.reset(options={"task": task})
            if start and mode == "tactics":
                env.step(start)
            result = env.step(start + trick if mode == "proof" else trick)
            assert result.reward == 0.0, trick
            assert result.info["envgym"].ending in (None, Ending.TERMINATED), trick
            assert not result.observation.startswith("The theorem"), trick


def test_no_trick_closes_an_episode_that_then_goes_on_as_before() -> None:
    env = started("forall A B : Prop, A \\/ B", max_turns=10 * len(TRICKS))
    goals = said(env, "intros A B.")
    for trick in TRICKS:
        said(env, trick)
        said(env, RESTART)
        assert said(env, "intros A B.") == goals, trick
    assert [step.sentence for step in env.state.steps[-1:]] == ["1: ( intros A B )."]


def test_what_the_kernel_refuses_is_a_failed_tactic() -> None:
    env = started("forall n : nat, n = 0")
    said(env, "fix cheat 1.")
    result = env.step("exact cheat.")
    assert result.observation.startswith("Failed: No goal is left, but this is no proof: Recursive definition of cheat")
    assert (result.reward, result.terminated) == (0.0, False)
    assert said(env, "idtac.").startswith("1 goal\n\n  cheat : ")


def test_a_tactic_that_never_ends_is_stopped_and_the_proof_goes_on() -> None:
    env = started(tactic_s=0.5)
    goals = said(env, "intros A B [HA HB].")
    failed = "Failed: The tactic takes too long: it was stopped, and the goals are as before."
    assert said(env, "do 2000000000 idtac.") == failed
    assert said(env, "idtac.") == goals
    assert env.step("split; assumption.").reward == 1.0


def test_a_tactic_that_needs_too_much_memory_is_stopped_and_the_proof_goes_on() -> None:
    env = started()
    said(env, "intros A B [HA HB].")
    hungry = "let x := eval vm_compute in (20000 * 20000) in idtac."
    assert said(env, hungry).startswith("Failed: The tactic needs too much memory")
    assert env.step("split; assumption.").reward == 1.0


def test_a_checker_that_was_killed_is_replaced_and_the_prefix_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = CheckerPool(1)
    monkeypatch.setattr(_coq_proofs, "shared_checkers", lambda: pool)
    env = started()
    said(env, "intros A B [HA HB].")
    first = pool._idle[0]
    assert first._session.run("coq._process.kill()").error is None
    assert env.step("split; assumption.").reward == 1.0
    assert first not in pool._idle
    assert pool._idle[0]._session.run("coq._process.kill()").error is None
    assert env.reset(options={"task": theorem("1 = 1")}).observation.startswith("1 = 1\n\n1 goal")
    assert env.step("reflexivity.").reward == 1.0
    assert [step.sentence for step in pool._idle[0].steps[-3:]] == [
        "1: ( reflexivity ).",
        "Qed.",
        "Print Assumptions goal.",
    ]
    pool.close()


def test_a_checker_that_does_not_start_makes_the_reward_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    env = started()
    pool = CheckerPool(1)
    monkeypatch.setattr(_coq_proofs, "shared_checkers", lambda: pool)
    monkeypatch.setattr(_coq_checker, "_ARGV", ("true",))
    result = env.step("intros A B [HA HB].")
    record = result.info["envgym"]
    assert (record.ending, result.truncated) == (Ending.ERROR_TOOL_INFRA, True)
    assert "Coq must be able to start" in str(record.error)
    with pytest.raises(ToolInfraFailure), pool.at(()):
        pass
    monkeypatch.undo()
    with pool.at(()) as checker:  # the place of the one that did not start is free
        assert checker.steps == []
    pool.close()


def test_goals_that_differ_when_they_are_said_again_are_a_failure() -> None:
    pool = CheckerPool(1)
    with pool.at(()) as checker:
        kept = [checker.say("Theorem t : True."), checker.say("1: ( idtac ).")]
        assert all(isinstance(step, ProofStep) for step in kept)
    tampered = (kept[0], ProofStep("1: ( idtac ).", "2 goals"))
    assert isinstance(kept[0], ProofStep)
    with pytest.raises(ProofReplayDiffers, match="said again must print '2 goals'"), pool.at((kept[0], tampered[1])):
        pass
    assert pool._idle == []  # nobody trusts a checker that has differed
    pool.close()


def test_forks_share_a_checker_and_go_their_own_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = CheckerPool(1)
    monkeypatch.setattr(_coq_proofs, "shared_checkers", lambda: pool)
    env = started()
    said(env, "intros A B H.", "destruct H as [HA HB].")
    forks = [env.fork() for _ in range(6)]
    ways = ["split.", "exfalso.", "pose proof HA.", "clear HA.", "revert HB.", "constructor."]
    first = [said(fork, way) for fork, way in zip(forks, ways, strict=True)]
    again = [said(fork, "idtac.") for fork in reversed(forks)]
    assert again == first[::-1]
    assert len(set(first)) == 5  # split and constructor agree
    assert said(env, "idtac.").startswith("1 goal\n\n  A, B : Prop\n  HA : A\n  HB : B")
    assert forks[0].step("all: assumption.").reward == 1.0
    assert len(pool._idle) == 1
    pool.close()


def test_a_checker_that_shares_the_most_is_chosen() -> None:
    pool = CheckerPool(2)
    with pool.at(()) as one, pool.at(()) as two:
        here = [step for text in ("Theorem a : True.", "1: ( idtac ).") if isinstance(step := one.say(text), ProofStep)]
        there = [step for text in ("Theorem b : True.",) if isinstance(step := two.say(text), ProofStep)]
    with pool.at(here) as checker:
        assert checker is one
        assert checker.num_shared(here) == 2
    with pool.at(there) as checker:
        assert checker is two
    pool.close()


def test_a_checker_is_replaced_after_many_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_coq_checker, "MAX_SENTENCES", 2)
    pool = CheckerPool(1)
    with pool.at(()) as first:
        first.say("Theorem a : True.")
    with pool.at(()) as second:
        assert isinstance(second, CoqChecker)
        assert second is not first
    pool.close()


def test_an_oracle_finds_its_way_back() -> None:
    env = envgym.make("math/proofs-v0").unwrapped
    env.reset(options={"split": "test", "index": 5})
    right = env.oracle()
    env.step("pose proof I.")
    assert env.oracle() == RESTART
    env.step(RESTART)
    assert env.oracle() == right
    env.reset(options={"task": theorem("1 = 1")})
    with pytest.raises(NoOracle):
        env.oracle()


def test_a_whole_proof_has_attempts_and_is_told_what_failed() -> None:
    env = started(mode="proof", attempts=3)
    first = env.step("intros A B H.\nsplit.\n- exact H.")
    assert first.observation.startswith("Failed: sentence 4, exact H\nIn environment\nA, B : Prop\nH : A /\\ B\n")
    assert first.observation.endswith("\nAttempts left: 2.")
    second = env.step("intros A B [HA HB].\nsplit.")
    assert second.observation.startswith("Failed: the proof ends before its goals.\n2 goals\n")
    third = env.step(
        "```coq\nProof.\n  intros A B [HA HB]. (* both *)\n  split.\n  - exact HB.\n  - exact HA.\nQed.\n```"
    )
    assert (third.reward, third.terminated) == (1.0, True)
    env = started(mode="proof")
    last = env.step("intros A B [HA HB]. auto.")
    assert (last.reward, last.terminated) == (0.0, True)
    assert last.observation == "Failed: auto is not allowed here: prove it step by step."


def test_automation_is_a_setting() -> None:
    goal = "forall a b : nat, a < b -> a + 1 <= b * 1"
    assert said(started(goal), "lia.") == "Failed: lia is not allowed here: prove it step by step."
    assert started(goal, automation=True).step("lia.").reward == 1.0


def test_theorems_of_a_file_may_rest_on_the_axioms_that_are_named(tmp_path: Path) -> None:
    path = tmp_path / "theorems.jsonl"
    row = {
        "name": "odd",
        "header": "Axiom odd : 1 = 2.",
        "statement": "Lemma more : 2 = 1.",
        "proof": "symmetry. exact odd.",
    }
    path.write_text(json.dumps(row | {"split": "train"}) + "\n")
    env = envgym.make("math/proofs-v0", data=str(path))
    episode = play(env, oracle_of(env), seed=0, task=env.unwrapped.tasks.task(Split.TRAIN, 0), max_turns=2)
    assert episode.turns[-1].observation == "Failed: No goal is left, but this is no proof: it rests on odd"
    env = envgym.make("math/proofs-v0", data=str(path), axioms=["odd"])
    assert play(env, oracle_of(env), seed=0, task=env.unwrapped.tasks.task(Split.TRAIN, 0)).reward == 1.0


def test_a_statement_that_coq_refuses_is_named(tmp_path: Path) -> None:
    path = tmp_path / "theorems.jsonl"
    path.write_text('{"name": "odd", "statement": "1 = true", "split": "train"}\n')
    env = envgym.make("math/proofs-v0", data=str(path))
    with pytest.raises(InvalidInput, match="theorem train/0 must be accepted by Coq, got Theorem goal : 1 = true"):
        env.reset(seed=0)


def test_without_coq_the_environment_tells_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_coq_checker, "has_program", lambda name: False)
    with pytest.raises(InvalidInput) as error:
        envgym.make("math/proofs-v0")
    assert str(error.value) == (
        "Coq must be installed below /usr, got no coqtop (math/proofs-v0); install it (Debian: apt install coq)."
    )
