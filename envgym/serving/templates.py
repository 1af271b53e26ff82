"""The environments that a server serves: each with settings is made once to describe it, and then for every session."""

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from itertools import chain
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from envgym.config.arguments import parameters
from envgym.core.json_types import canonical, content_hash
from envgym.core.serialize import task_from_json, task_to_json
from envgym.core.tasks import HiddenPayload, Split, Task
from envgym.env import Env
from envgym.errors import InvalidInput, check_known, unknown_name
from envgym.registry import creator_of, maker
from envgym.serving.fields import FACTS, check_task
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
_WORD: Final = re.compile(r"[\w+-][\w.+-]{0,63}", re.ASCII)
"""A text that a client may send as a setting; it must not be the name of a file here either."""
_OF_OPERATOR: Final = frozenset(
    {
        "config",
        "corpus",
        "data",
        "databases",
        "parties",
        "retriever_url",
        "revision",
        "sandbox",
        "source",
        "splits",
        "unsafe",
    }
)
"""Settings that name files, places on the network or a sandbox, which no client chooses."""


class EnvTemplate:
    """One environment with its settings."""

    def __init__(self, env_id: str, make: Callable[[], Env[Any]], *, has_own_tasks: bool = False) -> None:
        """Make it once; with `has_own_tasks` a client may send tasks with payloads of its own.

        Raises: InvalidInput, InfrastructureError: it cannot be made.
        """
        self.env_id, self.make, self._has_own_tasks = env_id, make, has_own_tasks
        with closing(make()) as env:
            inner = env.unwrapped
            self.tasks = inner.tasks
            self.needs_thread = inner.blocking
            """Whether its calls may wait; also where one took long once."""
            self.tools = tuple(item.spec for item in inner.toolset().values())
            self.description: Json = {
                **versions(),
                "env": env_id,
                "fork_capability": inner.fork_capability.value,
                **facts_of(inner),
                "tools": tools_to_wire(self.tools),
                "sizes": {split.value: self.tasks.size(split) for split in Split},
            }
        self.description["digest"] = content_hash(self.description)[:16]
        self._drawn: OrderedDict[tuple[str, str], Task] = OrderedDict()
        """By key and id: tasks of one key may be worded, and drawn, in several ways."""
        self._num_slow = 0
        self._lock = Lock()

    def changed_facts(self, env: Env[Any], system_prompt: str) -> Json:
        """Return the facts that the env's last reset changed. `system_prompt`: as its record has it."""
        facts = {**facts_of(env.unwrapped), "system_prompt": system_prompt}
        return {name: value for name, value in facts.items() if value != self.description[name]}

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
        """Return the task of a request, with all that was left out.

        Raises: InvalidInput: no task of this server, or one of the client's own where none is accepted.
        """
        check_task(data)
        try:
            task = task_from_json(data)
        except (TypeError, KeyError, ValueError) as error:
            do = "take one from env.unwrapped.tasks"
            raise InvalidInput.of("options['task']", "be a Task", data, where=self.env_id, do=do) from error
        hidden = task.payload
        if not isinstance(hidden, HiddenPayload):
            must, do = "be one of this server's", "take it from the env's own tasks, or serve with --client-tasks"
            InvalidInput.unless(
                self._has_own_tasks, f"task {task.id}", must, "one of the client's", where=self.env_id, do=do
            )
            return task
        with self._lock:
            own_task = self._drawn.get((hidden.key, task.id))
        if own_task is None and hidden.index is not None:
            own_task = self.tasks.task(task.split, hidden.index)
        if own_task is None or own_task.key != hidden.key:
            must, do = "be one of this environment and its settings", "take it from the env's own tasks"
            raise InvalidInput.of(f"task {task.id}", must, hidden.key, where=self.env_id, do=do)
        return Task(
            id=task.id, prompt=task.prompt, payload=own_task.payload, split=task.split, metadata=own_task.metadata
        )

    def remember(self, task: Task) -> None:
        """Keep a task that an env drew, for a client that asks for it again."""
        with self._lock:
            self._drawn[task.key, task.id] = task
            self._drawn.move_to_end((task.key, task.id))
            if len(self._drawn) > MAX_DRAWN:
                self._drawn.popitem(last=False)


def facts_of(env: Env[Any]) -> Json:
    """Return the facts of an env that may change when it begins an episode."""
    facts: Json = {name: getattr(env, name) for name in FACTS}
    return {**facts, "reward_range": list(facts["reward_range"]), "unchecked": dict(facts["unchecked"])}


class ClientRights(NamedTuple):
    """What the operator of a server lets its clients choose; by default nothing."""

    names: Collection[str] = ()
    """Settings to which a client may give numbers, true, false, and words that name no file."""
    variants: Mapping[str, Sequence[Mapping[str, Any]]] = MappingProxyType({})
    """Id of an env -> settings that a client may ask for, as a whole."""
    own_tasks: bool = False
    """Whether a client may send tasks with payloads of its own."""


class Templates:
    """The environments of a server, by id and settings."""

    def __init__(self, env_ids: Sequence[str], defaults: Mapping[str, Any], rights: ClientRights | None = None) -> None:
        """Serve environments, all with the settings `defaults`; without `rights` clients choose nothing.

        Raises: UnknownName, InvalidInput, InfrastructureError: an environment cannot be made, or clients cannot be
            given such a right.
        """
        rights = rights or ClientRights()
        if refused := sorted(_OF_OPERATOR.intersection(rights.names)):
            do = "give it to `envgym serve` by --set, or a whole set of settings by --accept"
            must = "name no files, places on the network or sandbox"
            raise InvalidInput.of("settings of clients", must, ", ".join(refused), where="envgym serve", do=do)
        self._makers = {env_id: maker(env_id) for env_id in env_ids}
        self._known = {env_id: parameters(creator_of(env_id)) for env_id in env_ids}
        self._defaults, self._rights = dict(defaults), rights
        self._accepted = {_key(env_id, variant) for env_id, items in rights.variants.items() for variant in items}
        self._made: OrderedDict[str, EnvTemplate] = OrderedDict()
        self._lock = Lock()
        for env_id, variants in rights.variants.items():
            check_known("environment of this server", env_id, self._makers, where="--accept")
            for name in chain.from_iterable(variants):
                _check_taken(name, [self._known[env_id]], where=f"--accept {env_id}")
        choosable = [None if table is None else set(table) - _OF_OPERATOR for table in self._known.values()]
        for name in rights.names:
            _check_taken(name, choosable, where="--client-setting")
        for env_id in env_ids:
            self.get(env_id, {})

    def known(self, env_id: object, settings: object) -> EnvTemplate | None:
        """The template, if it was made already; nothing is waited for."""
        return self._made.get(_key(env_id, settings))

    def get(self, env_id: object, settings: object) -> EnvTemplate:
        """Return an environment with its settings; the first time it is made, which may take long.

        Raises: UnknownName: it is not served, or has no such setting. InvalidInput: a client may not choose one of the
            settings; or as `envgym.make`.
        """
        if not isinstance(env_id, str) or env_id not in self._makers:
            raise unknown_name("environment of this server", str(env_id), self._makers, where="envgym serve")
        if not isinstance(settings, dict):
            where, do = "environment server", "send an object"
            raise InvalidInput.of(f"settings of {env_id}", "be a mapping", settings, where=where, do=do)
        key = _key(env_id, settings)
        if key not in self._accepted:
            self._check_settings(env_id, settings)
        with self._lock:
            template = self._made.get(key)
            if template is None:
                make_env, keywords = self._makers[env_id], {**self._defaults, **settings}
                has_own_tasks = self._rights.own_tasks
                template = EnvTemplate(env_id, lambda: make_env(**keywords), has_own_tasks=has_own_tasks)
                self._made[key] = template
            self._made.move_to_end(key)
            if len(self._made) > MAX_TEMPLATES:
                self._made.popitem(last=False)
        return template

    def _check_settings(self, env_id: str, settings: Mapping[str, Any]) -> None:
        """Check that a client may choose settings. Raises: UnknownName, InvalidInput: it may not choose one."""
        arguments = self._known[env_id]
        for name, value in settings.items():
            if arguments is not None:
                check_known("keyword argument", name, arguments, where=env_id)
            if name in self._defaults and _key(name, self._defaults[name]) == _key(name, value):
                continue
            where = "environment server"
            if name not in self._rights.names:
                do = f"start `envgym serve` with --set {name}=VALUE, or with --client-setting {name}"
                must = "be left to the server, which gives its own"
                raise InvalidInput.of(f"setting {name} of {env_id}", must, value, where=where, do=do)
            if not _is_plain(value):
                must, do = "be numbers, true, false, or words that name no file", "give it to `envgym serve` by --set"
                raise InvalidInput.of(f"setting {name} of {env_id}", must, value, where=where, do=do)

    @property
    def env_ids(self) -> list[str]:
        return list(self._makers)


def _check_taken(name: str, tables: Collection[Collection[str] | None], *, where: str) -> None:
    """Check that an environment takes a keyword argument; a table of None takes any. Raises: UnknownName: none does."""
    if None not in tables:
        check_known("keyword argument", name, {keyword for table in tables for keyword in table or ()}, where=where)


def _is_plain(value: object) -> bool:
    """Return whether a client may send a value: it names no file, no code and no address."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None and not os.path.lexists(value)
    return value is None or isinstance(value, bool | int | float)


def _key(env_id: object, settings: object) -> str:
    try:
        return canonical([env_id, settings])  # type: ignore[list-item]  # JSON, as it was decoded
    except (TypeError, ValueError):  # NaN, or a value of the operator's that JSON has no form for
        return repr((env_id, settings))
