"""A party behind an endpoint: what is sent and read, failures, and verifiers that ask it."""

import math
import os
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from envgym.agents.policies.parties import EndpointParty, _shared
from envgym.agents.settings import EnvSettings
from envgym.authoring.rubric_env import RubricEnv
from envgym.config.plugins import Choice
from envgym.core.messages import Message, Role
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending, Invalid
from envgym.errors import InvalidInput, PartyFailure, SettingsError
from envgym.party import PARTY, LanguageModel
from envgym.verifiers import GenerativeVerifier, LlmJudge, red_team_judge
from tests.agents.policies.fake_server import HANG, Server, running
from tests.support.env_server import WAIT_S

TASK = Task(id="train/0", prompt="Capital of Peru?", payload={"answer": "Lima"}, split=Split.TRAIN)
HELLO = [Message(role=Role.USER, content="Hello?")]


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as server:
        yield server
        _shared.close()


def party(server: Server, **settings: Any) -> EndpointParty:
    return EndpointParty(**{"base_url": server.url, "model": "judge", "backoff_s": 0.0, "max_retries": 1, **settings})


def said(text: str) -> object:
    return {"choices": [{"message": {"content": text}}]}


def top(tokens: Sequence[Mapping[str, Any]]) -> object:
    first = {"token": "Yes", "logprob": -0.1, "top_logprobs": tokens}
    return {"choices": [{"message": {"content": "Yes"}, "logprobs": {"content": [first]}}]}


def first_token(probabilities: Mapping[str, float]) -> object:
    return top([{"token": token, "logprob": math.log(value)} for token, value in probabilities.items()])


def test_reply_is_the_most_probable_and_depends_on_seed_and_conversation(server: Server) -> None:
    server.script = [said("Good day.")]
    asked = party(server, max_new_tokens=9)
    assert isinstance(asked, LanguageModel)
    assert asked.reply(HELLO) == Message(role=Role.ASSISTANT, content="Good day.")
    asked.reply(HELLO)
    asked.reply([*HELLO, Message(role=Role.ASSISTANT, content="Hi."), *HELLO])
    party(server, seed=1).reply(HELLO)
    first, again, longer, other = server.bodies
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("judge", 0.0, 9)
    assert first == again
    assert [message["role"] for message in longer["messages"]] == ["user", "assistant", "user"]
    assert len({first["seed"], longer["seed"], other["seed"]}) == 3


def test_sample_has_its_own_temperature_and_seed(server: Server) -> None:
    server.script = [said("So.")]
    assert party(server, sampling_temperature=0.7).sample(HELLO, seed=5).content == "So."
    assert (server.bodies[0]["temperature"], server.bodies[0]["seed"]) == (0.7, 5)


def test_probability_of_a_word_is_that_of_its_tokens_in_any_letter_case(server: Server) -> None:
    server.script = [first_token({"Yes": 0.5, " yes": 0.125, "YES": 0.0625, "No": 0.25, "Yesterday": 0.03})]
    assert party(server).compute_probabilities(HELLO, ["Yes", "No", "Maybe"]) == pytest.approx([0.6875, 0.25, 0.0])
    body = server.bodies[0]
    assert (body["logprobs"], body["top_logprobs"], body["max_tokens"]) == (True, 20, 1)
    assert body["temperature"] == 1.0, "the model's own probabilities"


@pytest.mark.parametrize(
    "answer, error",
    [
        (said("Yes"), "the choice holds no logprobs"),
        ({"choices": []}, "the response holds no choice"),
        ({"choices": [{"logprobs": {"content": []}}]}, "the log-probs hold no token"),
        ({"choices": [{"logprobs": {"content": [{}]}}]}, "the first token holds no top_logprobs"),
        (first_token({"Yes": 2.0}), "a log-prob is no number up to 0"),
        (top([{"token": "Yes", "logprob": math.nan}]), "a log-prob is no number up to 0"),
        (top([{"token": 1, "logprob": 0}]), "a log-prob is no number up to 0"),
    ],
)  # fmt: skip
def test_service_that_states_no_probabilities_is_a_failure(server: Server, answer: object, error: str) -> None:
    server.script = [answer]
    with pytest.raises(PartyFailure, match=f"did not answer in 2 attempts; the last error: {error}"):
        party(server).compute_probabilities(HELLO, ["Yes"])


@pytest.mark.parametrize("answer, error", [(said(" "), "said nothing"), ((400, {"error": "no"}, {}), "no")])
def test_service_that_says_nothing_or_refuses_is_a_failure(server: Server, answer: object, error: str) -> None:
    server.script = [answer]
    with pytest.raises(PartyFailure, match=error):
        party(server).reply(HELLO)


def test_answer_that_takes_too_long_is_a_failure(server: Server) -> None:
    server.script = [HANG]
    with pytest.raises(PartyFailure, match=r"no answer within 0\.2 s"):
        party(server, deadline_s=0.2).reply(HELLO)


def test_parties_of_equal_settings_share_their_limits_and_may_be_pickled(server: Server) -> None:
    server.script = [said("So.")]
    parties = [pickle.loads(pickle.dumps(party(server, max_concurrency=2))) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert {message.content for message in pool.map(lambda party: party.reply(HELLO), parties)} == {"So."}
    assert server.most <= 2


def test_connections_may_be_closed_twice_and_are_opened_again(server: Server) -> None:
    server.script = [said("So.")]
    for _ in range(2):
        assert party(server).reply(HELLO).content == "So."
        _shared.close()
    _shared.close()


def test_forked_child_has_connections_of_its_own(server: Server) -> None:
    server.script = [said("So.")]
    party(server).reply(HELLO)
    child = os.fork()
    if not child:
        os._exit(party(server, deadline_s=WAIT_S).reply(HELLO).content != "So.")
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"deadline_s": 0}, "deadline_s must be above 0, got 0"),
        ({"sampling_temperature": 0}, "sampling_temperature must be above 0, got 0"),
        ({"temperature": -1}, "temperature must be in range, got -1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be in range, got 0"),
        ({"base_url": "localhost"}, "base_url"),
        ({"retries": 3}, "retries"),
    ],
)
def test_unusable_settings_are_refused(settings: dict[str, Any], error: str) -> None:
    chosen = {"name": "endpoint", "base_url": "http://localhost:1/v1", "model": "judge", **settings}
    with pytest.raises(InvalidInput, match=error):
        PARTY.build(Choice.model_validate(chosen))


# ---- verifiers that ask it -------------------------------------------------------------------------------------------


def answer_in(body: Mapping[str, Any]) -> str:
    found = re.search(r"<<<\w{16}\n(.*)\n\w{16}>>>", body["messages"][0]["content"], re.DOTALL)
    assert found is not None
    return found[1]


def test_llm_judge_asks_an_endpoint(server: Server) -> None:
    server.script = [lambda body: said(f"I see.\nScore: {int('Lima' in answer_in(body))}")]
    verifier = LlmJudge(judge=party(server))
    assert [verifier(answer, TASK).score for answer in ("It is Lima.", "Cusco")] == [1.0, 0.0]
    assert all(result.false_positive_rate == 0.0 for result in red_team_judge(verifier, [TASK]))


def test_generative_verifier_asks_an_endpoint(server: Server) -> None:
    def model(body: Mapping[str, Any]) -> object:
        if not body.get("logprobs"):
            return said(f"Let me see, {body['seed']}.")
        return first_token({"Yes": 0.8, "No": 0.1} if "Lima" in answer_in(body) else {" yes": 0.05, " no": 0.9})

    server.script = [model]
    verifier = GenerativeVerifier(judge=party(server), num_rationales=2)
    assert [verifier(answer, TASK).score for answer in ("It is Lima.", "Cusco")] == pytest.approx([0.8, 0.05])
    assert len({body["messages"][1]["content"] for body in server.bodies if body.get("logprobs")}) == 4
    results = red_team_judge(verifier, [TASK], accept_above=0.5)
    assert all(result.false_positive_rate == 0.0 for result in results)


def test_endpoint_that_is_down_makes_the_reward_invalid(server: Server) -> None:
    server.script = [(503, {}, {})]
    env = RubricEnv(tasks=[TASK], rubric=LlmJudge(judge=party(server)))
    env.reset(seed=0, options={"task": TASK})
    reward = env.step("Lima").info["envgym"].reward
    assert isinstance(reward, Invalid)
    assert reward.cause is Ending.ERROR_PARTY


def test_endpoint_may_take_a_seat_by_settings() -> None:
    seat = {"name": "endpoint", "base_url": "http://localhost:1/v1", "model": "user"}
    env = EnvSettings.model_validate({"id": "math/arithmetic-v0", "parties": {"user": seat}}).make()
    assert isinstance(env.unwrapped.parties["user"], EndpointParty)
    with pytest.raises(SettingsError, match="model"):
        EnvSettings.model_validate({"id": "math/arithmetic-v0", "parties": {"user": {"name": "endpoint"}}}).make()
