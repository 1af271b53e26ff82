"""Settings from outside: YAML and `--set a.b=value`, read into frozen pydantic models or refused in a sentence."""

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, get_args

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from yaml.constructor import ConstructorError

from envgym.errors import SettingsError, sentence, suggestion

SettingsT = TypeVar("SettingsT", bound="Settings")


class Settings(BaseModel):
    """Base of every settings record: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    replaced_keys: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Keys of earlier versions, and what the error says to do instead."""


def check_unread(settings: Settings, names: Iterable[str], when: str, *, where: str, do: str) -> None:
    """Refuse values of settings that nothing reads. Raises: ValueError: one is not its default."""
    for name in names:
        value, usual = getattr(settings, name), type(settings).model_fields[name].default
        if value != usual:
            must = f"be left at {'null' if usual is None else usual} {when}"
            raise ValueError(sentence(f"{where}.{name}", must, value, where=where, do=do))


MAX_NODES = 100_000
"""Values of a document, with every alias written out."""


class _BoundedLoader(yaml.SafeLoader):
    """The safe loader, to which a key that stands twice in a mapping is an error, and so is what aliases blow up."""

    def get_single_node(self) -> yaml.Node | None:
        """Read the document, and count it before it is built."""
        root = super().get_single_node()
        if root is not None:
            _count(root, {})
        return root

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:  # Any: passed on
        """Read a mapping, and check it before merges (`<<`) bring in keys that may be there already."""
        mapping = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in mapping.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise ConstructorError(None, None, f"the key {key.value!r} a second time", key.start_mark)
                seen.add((key.tag, key.value))
        return mapping


_BoundedLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)[eE][-+]?\d{1,3}$", re.ASCII),
    list("-+.0123456789"),
)
"""Numbers with an exponent, as YAML 1.2 and every other language read them: in YAML 1.1 `1e-3` is text."""


def _count(node: yaml.Node, counts: dict[int, int]) -> int:
    """Count nodes, an alias as the node that it names. Raises: ConstructorError: too many, or one that holds itself."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in counts:
        counts[id(node)] = MAX_NODES + 1  # for an alias inside that names it
        parts = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        counts[id(node)] = 1 + sum(_count(part, counts) for part in parts)
    if counts[id(node)] > MAX_NODES:
        rule = f"more than {MAX_NODES:,} values, with every alias written out"
        raise ConstructorError(None, None, rule, node.start_mark)
    return counts[id(node)]


def read_settings_file(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings. Raises: SettingsError: no such file, malformed YAML, no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        do = "give the path of a YAML file"
        raise SettingsError.of("settings file", "be readable", error.strerror, where=str(path), do=do) from None
    except UnicodeDecodeError as error:
        got, do = f"byte {error.start} that is none", "give the path of a YAML file"
        raise SettingsError.of("settings file", "be UTF-8 text", got, where=str(path), do=do) from None
    return read_yaml(text, where=str(path))


def read_yaml(text: str, *, where: str) -> dict[str, Any]:
    """Parse a YAML mapping. Raises: SettingsError: malformed, a key twice, or no mapping."""
    try:
        data = yaml.load(text, _BoundedLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}, line {mark.line + 1}" if mark else where
        got = getattr(error, "problem", None) or "something else"
        raise SettingsError.of("settings", "be YAML", got, where=place, do="correct that line") from None
    except ValueError as error:  # what looks like a date, and is none
        raise SettingsError.of("settings", "be YAML", str(error), where=where, do="quote that value") from None
    except RecursionError:
        got, do = "lists nested too deep", "correct the brackets"
        raise SettingsError.of("settings", "be YAML", got, where=where, do=do) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        got = type(data).__name__
        raise SettingsError.of("settings", "be a mapping of keys", got, where=where, do="write `key: value` lines")
    return data


def apply_overrides(data: Mapping[str, Any], overrides: Sequence[str], *, option: str = "--set") -> dict[str, Any]:
    """Return `data` with every `a.b=value` put in place; numbers select list entries (`envs.0.id=...`).

    Raises: SettingsError: an override that leads nowhere; `option` is what gave it.
    """
    merged = deepcopy(dict(data))
    for override in overrides:
        dotted, equals, value = override.partition("=")
        if not equals or not dotted.strip():
            raise SettingsError.of(option, "be KEY=VALUE", repr(override), where="command line", do="write a.b=1")
        source = f"{option} {override}"
        set_value(merged, dotted.strip(), read_yaml_value(value, where=source), source=source, where="command line")
    return merged


def places(overrides: Sequence[str], *, option: str = "--set", under: str = "") -> dict[str, str]:
    """Return for every key that an override sets the words of the command line that did, for `build_settings`."""
    return {f"{under}{text.partition('=')[0].strip()}": f"{option} {text}" for text in overrides}


def read_yaml_value(text: str, *, where: str) -> Any:  # whatever YAML value the caller wrote
    """Parse one YAML value. Raises: SettingsError: malformed, or a key twice."""
    try:
        return yaml.load(text, _BoundedLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise SettingsError.of("value", "be YAML", repr(text), where=where, do="quote it") from None


def set_value(target: Any, path: str, value: Any, *, source: str, where: str) -> None:  # a YAML tree
    """Put a value in place at a dotted path of plain data, and make the sections on the way.

    Raises: SettingsError: it leads nowhere; `source` is what is at fault, `where` gave it.
    """
    keys = path.split(".")
    for place, key in enumerate(keys):
        last = place == len(keys) - 1
        if isinstance(target, list):
            if not key.isdigit() or int(key) >= len(target):
                must = f"name an entry 0..{len(target) - 1}"
                raise SettingsError.of(source, must, key, where=where, do="count from 0")
            index: Any = int(key)
        elif isinstance(target, dict):
            index = key
            if not last and not isinstance(target.get(key), dict | list):
                target[key] = {}
        else:
            raise SettingsError.of(source, "lead to a section", key, where=where, do="name a key inside a section")
        if last:
            target[index] = value
        else:
            target = target[index]


def read_value(data: Any, path: str) -> Any:  # a YAML tree
    """Return the value at a dotted path of plain data; None: there is none."""
    for key in path.split("."):
        if isinstance(data, Mapping):
            data = data.get(key)
        elif isinstance(data, list) and key.isdigit() and int(key) < len(data):
            data = data[int(key)]
        else:
            return None
    return data


def build_settings(
    kind: type[SettingsT], data: Mapping[str, Any], *, where: str, sources: Mapping[str, str] = MappingProxyType({})
) -> SettingsT:
    """Validate `data` as `kind`.

    Args:
        kind: the model.
        data: plain data.
        where: what the data were read from, for messages.
        sources: dotted key -> what set it instead; see `places`.

    Raises: SettingsError: one sentence per fault, unknown keys with near names.
    """
    try:
        return kind.model_validate(_without_numpy(dict(data)))
    except ValidationError as error:
        raise SettingsError("\n".join(faults(kind, error, where=where, sources=sources))) from None


def _without_numpy(value: Any) -> Any:  # a tree of plain data
    """Return settings with numbers of NumPy, which no file can hold, as numbers of Python."""
    if isinstance(value, dict):
        return {key: _without_numpy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_numpy(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def faults(
    kind: type[BaseModel], error: ValidationError, *, where: str, sources: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Say each fault that pydantic found in the house's form."""
    details = error.errors()
    inner = {fault["loc"][:depth] for fault in details for depth in range(len(fault["loc"]))}
    # A list whose entries are refused counts as too short: the entries' own faults say it.
    return [
        _fault(kind, fault, place_of(fault["loc"], where, sources))
        for fault in details
        if fault["type"] != "too_short" or fault["loc"] not in inner
    ]


def place_of(loc: Sequence[int | str], where: str, sources: Mapping[str, str]) -> str:
    """Return a value's source: the last override of its key or of one above; else `where`, and overrides inside it."""
    path = [str(part) for part in loc]
    keys = [(key.split("."), place) for key, place in sources.items()]
    whole = [place for key, place in keys if path[: len(key)] == key]
    parts = [place for key, place in keys if path and key[: len(path)] == path]
    return whole[-1] if whole else ", ".join([where, *parts])


def _fault(kind: type[BaseModel], fault: Any, where: str) -> str:  # pydantic's ErrorDetails
    path = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        model, key = _model_at(kind, fault["loc"][:-1]), str(fault["loc"][-1])
        fields = list(model.model_fields) if model is not None else []
        do = suggestion(key, fields, otherwise=f"known keys: {', '.join(sorted(fields)) or 'no key'}")
        if model is not None and issubclass(model, Settings):
            do = model.replaced_keys.get(key, do)
        return sentence("settings key", "be known", path, where=where, do=do)
    if fault["type"] == "missing":
        return sentence(path, "be set", "nothing", where=where, do="add it to the file, or set it on the command line")
    rule = fault["msg"].removeprefix("Value error, ")
    if " must " in rule:  # a sentence of ours already
        return str(rule)
    return sentence(path or "settings", _must(fault, rule), fault["input"], where=where, do="correct the value")


def _must(fault: Any, rule: str) -> str:  # pydantic's ErrorDetails
    """Say what a value must do, in words that know nothing of Python's types."""
    kind = fault["type"]
    if kind.startswith("int_"):
        return "be a whole number"
    match kind:
        case "float_type" | "float_parsing":
            return "be a number"
        case "bool_type" | "bool_parsing":
            return "be true or false"
        case "string_type":
            return "be text"
        case "model_type" | "dict_type":
            return "be a mapping of keys"
        case "tuple_type" | "list_type":
            return "be a list"
        case "too_short":
            return f"hold {fault['ctx']['min_length']} or more entries"
        case "value_error":  # a validator of ours: it says what the value must be
            return f"be {rule}"
    if rule.startswith("Input should "):
        return rule.removeprefix("Input should ").partition(", unable to parse")[0]
    return f"meet its rule ({rule})"


def _model_at(kind: type[BaseModel], loc: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the settings model at a place, None where it cannot be told."""
    model: type[BaseModel] | None = kind
    for part in loc:
        if isinstance(part, int) or model is None:
            continue
        field = model.model_fields.get(part)
        model = _model_in(field.annotation) if field is not None else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:  # any type expression
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)
