"""An environment: what an agent acts in.

    envgym play examples/plugins/coin.py:Coin
    envgym train run.yaml --set envs.0.id=examples/plugins/coin.py:Coin

`tasks` holds the tasks of both splits, `begin` shows one, `respond` answers an action, and `oracle` gives a right
action, for the warm start and for `envgym check`. A package can give its environment an id by an entry point.
"""

from envgym import Action, Env, Reply, Task
from envgym.authoring import ListTasks, TaskDraft


class Coin(Env[int]):
    """Repeat the side of the coin that is shown, for three turns."""

    tasks = ListTasks(
        [
            TaskDraft(prompt=f"Repeat each side. Coin {number} shows: {side}", payload={"side": side, "number": number})
            for number in range(40)
            for side in ("heads", "tails")
        ]
    )
    chance_score = 0.01

    def begin(self, task: Task) -> str:
        """Show the task."""
        self.state, self.side = 0, str(task.payload["side"])
        return task.prompt

    def respond(self, action: Action) -> Reply:
        """Pay a third for each right answer."""
        self.state += 1
        is_right = action.strip().lower() == self.side
        return Reply(observation="Again.", reward=is_right / 3, terminated=self.state == 3)

    def oracle(self) -> str:
        """Return the right answer."""
        return self.side
