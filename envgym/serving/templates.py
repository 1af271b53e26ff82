"""The environments that a server serves: each with settings is made once to describe it, and then for every session."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from threading import Lock
from typing import Any, Final

from envgym.core.json_types import canonical, content_hash
from envgym.core.serialize import task_from_json, task_to_json
from envgym.core.tasks import HiddenPayload, Split, Task
from envgym.env import Env
from envgym.errors import InvalidInput, unknown_name
from envgym.registry import maker
from envgym.run_trust import names_code
from envgym.serving.wire import MAX_BODY_BYTES, Json, tools_to_wire, versions, without_payload

MAX_TEMPLATES: Final = 64
"""Settings that are kept made; those that were not asked for longest are made again."""
MAX_DRAWN: Final = 4096
"""Tasks that envs drew by themselves, which clients may ask for again."""
MAX_TASKS: Final = 256
"""In one reply."""
SLOW_S: Final = 0.1
SLOW_CALLS: Final = 3
"""An env of which so many calls took longer gets threads from then on, so that nobody else waits for it."""


class EnvTemplate:
    """One environment with its settings."""

    def __init__(self, env_id: str, make: Callable[[], Env[Any]]) -> None:
        """Make it once. Raises: InvalidInput, InfrastructureError: it cannot be made."""
        self.env_id, self.make = env_id, make
        with closing(make()) as env:
            inner = env.unwrapped
            self.tasks = inner.tasks
            self.needs_thread = inner.blocking
            """Whether its calls may wait; also where one took long once."""
            self.tools = tuple(item.spec for item in inner.toolset().values())
            self.description: Json = {
                **versions(),
                "env": env_id,
                "system_prompt": inner.system_prompt,
                "fork_capability": inner.fork_capability.value,
                "chance_score": inner.chance_score,
                "optimum": inner.optimum,
                "reward_range": list(inner.reward_range),
                "unchecked": dict(inner.unchecked),
                "max_turns": inner.max_turns,
                "tools": tools_to_wire(self.tools),
                "sizes": {split.value: self.tasks.size(split) for split in Split},
            }
        self.description["digest"] = content_hash(self.description)[:16]
        self._drawn: OrderedDict[tuple[str, str], Task] = OrderedDict()
        """By key and id: tasks of one key may be worded, and drawn, in several ways."""
        self._num_slow = 0
        self._lock = Lock()

    def note_seconds(self, seconds: float) -> None:
        """Take in what a call took that others waited for."""
        self._num_slow += seconds > SLOW_S
        self.needs_thread = self._num_slow >= SLOW_CALLS

    def page(self, split: Split, start: int, count: int) -> list[Json]:
        """Return tasks without payloads and metadata: up to `count`, as many as a message holds, one at least.

        Raises: InvalidInput: there is no task of that index.
        """
        size = self.tasks.size(split)
        end = start + min(count, MAX_TASKS)
        page: list[Json] = []
        room = MAX_BODY_BYTES // 4
        for index in range(start, end if size is None else max(start + 1, min(end, size))):
            task = without_payload(self.tasks.task(split, index), index)
            room -= len(task.prompt)
            if page and room < 0:
                break
            page.append(task_to_json(task))
        return page

    def resolve(self, data: Mapping[str, Any]) -> Task:
        """Return the task of a request, with all that was left out. Raises: InvalidInput: no task of this server."""
        try:
            task = task_from_json(data)
        except (TypeError, KeyError, ValueError) as error:
            do = "take one from env.unwrapped.tasks"
            raise InvalidInput.of("options['task']", "be a Task", data, where=self.env_id, do=do) from error
        hidden = task.payload
        if not isinstance(hidden, HiddenPayload):
            return task
        with self._lock:
            found = self._drawn.get((hidden.key, task.id))
        if found is None and hidden.index is not None:
            found = self.tasks.task(task.split, hidden.index)
        if found is None or found.key != hidden.key:
            must, do = "be one of this environment and its settings", "take it from the env's own tasks"
            raise InvalidInput.of(f"task {task.id}", must, hidden.key, where=self.env_id, do=do)
        return Task(id=task.id, prompt=task.prompt, payload=found.payload, split=task.split, metadata=found.metadata)

    def remember(self, task: Task) -> None:
        """Keep a task that an env drew, for a client that asks for it again."""
        with self._lock:
            self._drawn[task.key, task.id] = task
            self._drawn.move_to_end((task.key, task.id))
            if len(self._drawn) > MAX_DRAWN:
                self._drawn.popitem(last=False)


class Templates:
    """The environments of a server, by id and settings."""

    def __init__(self, env_ids: Sequence[str], defaults: Mapping[str, Any]) -> None:
        """Serve environments, with settings that hold unless a client gives others.

        Raises: UnknownName, InvalidInput, InfrastructureError: one cannot be made.
        """
        self._makers = {env_id: maker(env_id) for env_id in env_ids}
        self._defaults = dict(defaults)
        self._made: OrderedDict[str, EnvTemplate] = OrderedDict()
        self._lock = Lock()
        for env_id in env_ids:
            self.get(env_id, {})

    def known(self, env_id: object, settings: object) -> EnvTemplate | None:
        """Return what was made already; it waits for nothing."""
        return self._made.get(_key(env_id, settings))

    def get(self, env_id: object, settings: object) -> EnvTemplate:
        """Return an environment with its settings; the first time it is made, which may take long.

        Raises: UnknownName: it is not served, or has no such setting. InvalidInput: as `envgym.make`.
        """
        if not isinstance(env_id, str) or env_id not in self._makers:
            raise unknown_name("environment of this server", str(env_id), self._makers, where="envgym serve")
        if not isinstance(settings, dict) or names_code(settings):
            must, do = "be a mapping that names no code", "give them to `envgym serve` by --set"
            raise InvalidInput.of(f"settings of {env_id}", must, settings, where="environment server", do=do)
        key = _key(env_id, settings)
        with self._lock:
            found = self._made.get(key)
            if found is None:
                make_env, wanted = self._makers[env_id], {**self._defaults, **settings}
                found = self._made[key] = EnvTemplate(env_id, lambda: make_env(**wanted))
            self._made.move_to_end(key)
            if len(self._made) > MAX_TEMPLATES:
                self._made.popitem(last=False)
        return found

    @property
    def env_ids(self) -> list[str]:
        """The ids that are served."""
        return list(self._makers)


def _key(env_id: object, settings: object) -> str:
    try:
        return canonical([env_id, settings])  # type: ignore[list-item]  # JSON, as it was decoded
    except ValueError:  # NaN
        return repr((env_id, settings))
