"""`web/shop-v0`: the oracle buys what is asked for, habits do not; refusals, splits, forks."""

import pickle
import re
from collections.abc import Callable
from statistics import mean

import pytest

from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.tasks import Split, Task, distinct_tasks, split_of
from envgym.core.turns import Ending
from envgym.envs.web._shop_goals import cheapest, read_goals, target
from envgym.envs.web.shop import Shop
from envgym.errors import InvalidInput
from envgym.parsing import tool_call_action
from envgym.seeds import generator
from tests.envs.episodes import conformance

TestShop = conformance("web/shop-v0", num_tasks=8)
# Three things, everything asked for that can be, and only a right order is paid.
TestShopLists = conformance("web/shop-v0", num_tasks=4, items=3, attributes=5, options=2, all_or_nothing=True)


def begun(index: int = 0, items: int = 1) -> Shop:
    env = Shop(items=items)
    env.reset(options={"split": "train", "index": index})
    return env


def said(env: Shop, *acts: str) -> list[str]:
    return [env.step(act).observation for act in acts]


def filled(env: Shop, query: str, pick: Callable[[int], int]) -> None:
    """Search once, open a result, choose options, add it to the cart."""
    results = re.findall(r"^(P\d{4}) \|", env.step(f"search[{query}]").observation, re.MULTILINE)
    env.step(f"open[{results[pick(len(results))]}]")
    for line in env.state.view.page.lines:
        values = [cell.act for cell in line.cells if cell.act and cell.act.verb == "choose"]
        if values:
            env.step(str(values[pick(len(values))]))
    env.step("add_to_cart[]")


def bought(env: Shop, query: str, pick: Callable[[int], int]) -> float:
    """Order one thing; return the reward."""
    filled(env, query, pick)
    env.step("checkout[]")
    return env.step("place_order[]").reward


@pytest.mark.parametrize("split", Split)
@pytest.mark.parametrize(
    "env",
    [Shop(), Shop(items=2, options=2), Shop(attributes=0, options=0), Shop(store=7)],
    ids=["default", "two", "type only", "another store"],
)
def test_oracle_buys_what_is_asked_for(env: Shop, split: Split) -> None:
    for index in range(8):
        episode = play(env, oracle_of(env), seed=0, task=env.tasks.task(split, index))
        assert (episode.reward, episode.ending) == (1.0, Ending.TERMINATED)


def test_oracle_finds_its_way_with_strange_things_in_the_cart() -> None:
    env = begun(items=2)
    filled(env, "cotton", lambda count: 0)
    filled(env, "cedar", lambda count: count - 1)
    said(env, "checkout[]", "search[cotton]", "show_page[3]")
    while not (result := env.step(env.oracle())).terminated:
        pass
    assert result.reward == 1.0


def test_buying_by_habit_earns_no_more_than_chance() -> None:
    rng = generator("habit")
    env = Shop()
    words = [word for product in env.shop.products.values() for word in product.title.split() if word.isalpha()]
    first, at_random = [], []
    for index in range(60):
        env.reset(options={"split": "test", "index": index})
        first.append(bought(env, "cotton", lambda count: 0))
        env.reset(options={"split": "test", "index": index})
        word = words[rng.integers(len(words))]
        at_random.append(bought(env, word, lambda count: int(rng.integers(count))))
    assert mean(first) <= env.chance_score
    assert mean(at_random) <= env.chance_score


def test_searching_for_the_request_and_buying_the_first_result_is_seldom_right() -> None:
    # Most of WebShop's reward is paid for the right type under the limit; `all_or_nothing` pays it no more.
    graded: list[float] = []
    strict: list[float] = []
    for env, rewards in ((Shop(), graded), (Shop(all_or_nothing=True), strict)):
        for index in range(60):
            env.reset(options={"split": "test", "index": index})
            rewards.append(bought(env, env.task.prompt, lambda count: 0))
    assert 0.6 < mean(graded) < 0.9
    assert mean(strict) < 0.35


def test_text_and_tools_are_the_same() -> None:
    by_text, by_tool = begun(), begun()
    product = target(by_text.shop, by_text.state.goals[0])
    option = next(iter(product.options.values()))
    value = next(iter(option.prices))
    text = (
        f"search[{product.title}]",
        f"open[{product.id}]",
        f"choose[{option.name}: {value}]",
        "back[]",
        "show_page[2]",
    )
    calls = (
        tool_call_action("search", query=product.title),
        tool_call_action("open", product=product.id),
        tool_call_action("choose", option=option.name, value=value),
        tool_call_action("back"),
        tool_call_action("show_page", number=2),
    )
    assert said(by_text, *text) == said(by_tool, *calls)
    assert by_text.state == by_tool.state


@pytest.mark.parametrize(
    "act, answer",
    [
        ("buy it", "Call a tool, or write one act such as search[desk lamp]."),
        ("search[]", "Nothing was found for: no words. Search for other words.\nCart (0)"),
        ("search[xyzzy]", "Nothing was found for: xyzzy. Search for other words.\nCart (0)"),
        ("search[" + "lamp " * 61 + "]", "search takes at most 300 characters, got 304."),
        ("place_order[]", "This page does not offer place_order[]. It offers search[words], view_cart[]."),
        ("open[P0000]", "This page does not offer open[P0000]. It offers search[words], view_cart[]."),
        ("steal[P1001]", "This page does not offer steal[P1001]. It offers search[words], view_cart[]."),
        (tool_call_action("show_page", number=10**30), None),
        (
            tool_call_action("remove", line=-1),
            "This page does not offer remove[-1]. It offers search[words], view_cart[].",
        ),
    ],
)
def test_what_a_page_does_not_offer_is_answered_with_what_it_offers(act: str, answer: str | None) -> None:
    env = begun()
    before = env.state.view.visit.cart
    result = env.step(act)
    assert answer is None or result.observation == answer
    assert (result.reward, result.terminated, env.state.view.visit.cart) == (0.0, False, before)


def test_an_order_is_final_and_calls_after_it_change_nothing() -> None:
    env = begun()
    while env.state.view.visit.open_page != "checkout":
        env.step(env.oracle())
    both = tool_call_action("place_order") + tool_call_action("view_cart")
    result = env.step(both)
    assert (result.reward, result.terminated) == (1.0, True)
    assert result.observation.endswith("This page does not offer view_cart[]. It offers nothing more.")


def test_forks_share_nothing() -> None:
    env = begun()
    for _ in range(3):
        env.step(env.oracle())
    twin = env.fork()
    actions = [twin.oracle()]
    said(twin, "search[cotton]", "view_cart[]")
    assert env.oracle() == actions[0]
    assert pickle.loads(pickle.dumps(env)).step(actions[0]).observation == env.step(actions[0]).observation


def test_no_goal_of_the_test_side_is_part_of_a_train_task() -> None:
    goals: dict[Split, set[str]] = {split: set() for split in Split}
    for items in (1, 3):
        env = Shop(attributes=1, options=0, items=items)
        for split in Split:
            for task in distinct_tasks(env.tasks, split, 120):
                for goal in read_goals(task.payload):
                    goals[split].add(str(goal.content))
                    assert split_of(goal.content) is split
    assert len(goals[Split.TRAIN]) > 100
    assert not goals[Split.TRAIN] & goals[Split.TEST]


def test_every_goal_is_met_by_a_product_under_its_limit() -> None:
    env = Shop(attributes=3, options=2, items=2)
    for task in distinct_tasks(env.tasks, Split.TRAIN, 60):
        goals = read_goals(task.payload)
        assert len({goal.type for goal in goals}) == 2
        for goal in goals:
            product = target(env.shop, goal)
            assert product.attributes.issuperset(goal.attributes)
            assert product.price(cheapest(product, goal.options)) <= goal.limit
            assert goal.type in task.prompt
            assert all(text in task.prompt for text in (*goal.attributes, *goal.options.values()))
            assert f"${goal.limit // 100}.00" in task.prompt


def test_task_of_another_store_is_refused() -> None:
    stranger = Shop(store=1).tasks.task(Split.TRAIN, 0)
    with pytest.raises(InvalidInput, match="task must be of this store"):
        Shop().reset(options={"task": stranger})
    with pytest.raises(InvalidInput, match="task must be of this store"):
        Shop().reset(options={"task": Task(id="x", prompt="", payload={}, split=Split.TRAIN)})
