"""Small households, what is answered in them, and a search to which the oracle is compared."""

from collections import deque
from collections.abc import Iterator

from envgym import Scored, Split, Task
from envgym.conformance.env_under_test import play
from envgym.core.json_types import JsonObject, JsonValue
from envgym.envs.puzzles._household import MILESTONES, HouseholdState, admissible_commands, apply_command, milestones
from envgym.envs.puzzles._household_catalogue import STATES
from envgym.envs.puzzles.household import Household

KITCHEN: JsonValue = [
    "kitchen",
    {"cabinet": 1, "counter": 1, "drawer": 1, "fridge": 1, "microwave": 1, "sinkbasin": 1, "stove": 1},
]
STUDY: JsonValue = ["study", {"bookcase": 1, "desk": 1, "drawer": 1}]


def household_task(goal: str, *things: str, rooms: tuple[JsonValue, ...] = (KITCHEN, STUDY)) -> Task:
    """Return a task; `goal` is kind, thing and place, and each thing is its kind and where it is."""
    rows: list[JsonValue] = [list(thing.split(" ", 1)) for thing in things]
    payload: JsonObject = {"goal": list(goal.split()), "rooms": list(rooms), "things": rows}
    return Task(id="t", prompt="", payload=payload, split=Split.TRAIN)


def say_commands(task: Task, *commands: str) -> list[tuple[str, float]]:
    """Return what is answered and paid, with subgoals."""
    episode = play(Household(subgoals=True), lambda turn, _: commands[turn], seed=0, task=task, max_turns=len(commands))
    return [(str(turn.observation), turn.reward.value) for turn in episode.turns if isinstance(turn.reward, Scored)]


def fewest_commands(state: HouseholdState) -> int:
    """Search breadth first for the fewest commands to the goal, from a state in which nothing is held.

    Left out is what cannot shorten a way: to look, to close, to carry other things than the wanted ones, to put them
    anywhere but at a target, to go where nothing is to be done, and to open before it is needed.
    """
    last = len(MILESTONES[state.layout.goal.kind]) - 1
    queue, known = deque([(state, 0)]), {_how_it_stands(state)}
    while queue:
        now, length = queue.popleft()
        for after in _next_states(now):
            if milestones(after) >> last:
                return length + 1
            key = _how_it_stands(after)
            if key not in known:
                known.add(key)
                queue.append((after, length + 1))
    raise AssertionError("the goal cannot be reached")


def _how_it_stands(state: HouseholdState) -> tuple[object, ...]:
    return state[1:-2]  # without the layout, which stays, and what has been seen and reached


def _next_states(state: HouseholdState) -> Iterator[HouseholdState]:
    layout, goal = state.layout, state.layout.goal
    wanted = {layout.things[thing].name for thing in layout.goal_things}
    sources = {state.places[thing] for thing in layout.goal_things}
    stations = {place for place, piece in enumerate(layout.furniture) if goal.kind in piece.kind.operations}
    lamps = {state.places[number] for number, thing in enumerate(layout.things) if thing.kind.lamp}
    is_ready = state.held is not None and (goal.kind not in STATES or bool(state.treated(goal.kind) >> state.held & 1))
    for command in admissible_commands(state):
        place = layout.places_by_name.get(command.place, -1)
        match command.verb:
            case "go":
                is_useful = place < 0 or place in {*sources, *stations, *lamps, *layout.targets}
            case "open":
                is_useful = (place in sources and state.held is None) or (place in layout.targets and is_ready)
            case "take":
                is_useful = command.thing in wanted
            case "put":
                is_useful = place in layout.targets and is_ready
            case "turn on":
                is_useful = goal.kind == "light"
            case verb:
                is_useful = verb == goal.kind
        if is_useful:
            yield apply_command(state, command).state
