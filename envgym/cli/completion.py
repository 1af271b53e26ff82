"""`envgym completion`: a script that completes commands, options, ids, names and settings keys in a shell."""

import argparse
from collections.abc import Collection
from typing import Any, Final

from envgym.cli.common import Parser, echo

_Keys = list[tuple[str, Collection[str]]]
"""Keys of a settings file, each with the values that it can be completed with."""
_PAIRS: Final = {
    ("train", "settings"): "",
    ("sft", "settings"): "",
    ("eval", "agent_set"): "agent.",
    ("eval", "endpoint_set"): "engine.endpoint.",
}
"""Command and argument that takes KEY=VALUE -> what stands before KEY in a settings file."""
_KINDS: Final = {
    ("eval", "agent"): "agent",
    ("eval", "search"): "search",
    ("eval", "metric"): "metric",
    ("eval", "backend"): "policy_backend",
    ("recipes", "name"): "recipe",
}
"""Command and argument -> the kind of plug-in that it names."""
_VALUES: Final = {
    "split": ("test", "train"),
    "device": ("auto", "cpu", "cuda"),
    "dtype": ("float32", "bfloat16"),
    "precision": ("auto", "float32", "mixed", "bfloat16"),
}
"""Argument -> its values."""
_PAIR_FUNCTIONS: Final = {
    "bash": """{name}() {{
  case $1 in *=*) compgen -W "{pairs}" -- "$1" ;; *) compgen -W "{keys}" -- "$1" ;; esac
}}""",
    "zsh": """{name}() {{
  if [[ $PREFIX == *=* ]]; then compadd -- {pairs}; else compadd -S '' -- {keys}; fi
}}""",
    "fish": """function {name}
  if string match -q '*=*' -- (commandline -ct); string split ' ' '{pairs}'; else; string split ' ' '{keys}'; end
end""",
}
"""Completes KEY=VALUE: first the key, with no space after it, then one of its values."""
_JOINED_WORDS: Final = r"""
# Bash splits words at "=": join KEY=VALUE, drop the "=" of --option=VALUE, and put no space after "KEY=".
_envgym_complete() {
  local word words=() last=-1 joins=
  for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
    if [[ $word == "=" && ${words[last]} != -* ]]; then
      words[last]+="="; joins=1
    elif [[ -n $joins ]]; then
      words[last]+=$word; joins=
    elif [[ $word == "=" ]]; then
      words[++last]=""; joins=1
    else
      words[++last]=$word
    fi
  done
  local COMP_WORDS=("${words[@]}") COMP_CWORD=$last
  _shtab_envgym
  [[ ${words[last]} == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"${words[last]%%=*}="}")
  [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace 2>/dev/null
  return 0
}
complete -o bashdefault -F _envgym_complete envgym"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("shell", metavar="SHELL", choices=tuple(_PAIR_FUNCTIONS), help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from envgym.cli.main import COMMANDS, build_parser

    parser = build_parser(*COMMANDS)
    keys = _settings_keys()
    for command, actions in actions_by_command(parser).items():
        for action in actions:
            _complete(command, action, keys)
    script = shtab.complete(parser, shell=args.shell)
    echo(script, _JOINED_WORDS if args.shell == "bash" else "", sep="")
    return 0


def actions_by_command(parser: Parser) -> dict[str, list[argparse.Action]]:
    """Return the arguments of every command."""
    return {name: own._actions for name, own in parser.commands.items()}


def _complete(
    command: str,
    action: Any,  # an argparse.Action, on which shtab reads `complete`
    keys: _Keys,
) -> None:
    """Say what an argument can be completed with; `keys` are those of a settings file."""
    import shtab

    from envgym import list_ids
    from envgym.cli.plugin_kinds import KINDS
    from envgym.cli.settings import read_settings_file_sections

    place = (command, action.dest)
    if place in _PAIRS:
        action.complete = _pairs(keys, _PAIRS[place], name=f"_envgym_{command}_{action.dest}")
    elif place in _KINDS:
        action.choices = KINDS[_KINDS[place]].names()
    elif place == ("list", "kind"):
        action.choices = list(KINDS)
    elif place == ("settings", "key"):
        action.choices = [key.key for section in read_settings_file_sections() for key in section.keys]
    elif action.metavar in ("ENV", "ID"):
        action.choices = list_ids()
    elif action.metavar in ("CONFIG", "SUITE"):
        action.complete = shtab.glob("*.yaml", "*.yml")
    elif action.metavar in ("DIR", "RUN", "NAME|DIR", "NAME|DIR|RUN"):
        action.complete = shtab.DIRECTORY
    elif action.dest in _VALUES:
        action.choices = _VALUES[action.dest]


def _settings_keys() -> _Keys:
    from envgym import list_ids
    from envgym.cli.settings import kinds_by_key, read_settings_file_sections

    kinds = kinds_by_key()
    keys: _Keys = []
    for key in (key for section in read_settings_file_sections() for key in section.keys):
        names = kinds[key.key].names() if key.key in kinds else ()
        if key.key == "envs.0.id":
            keys.append((key.key, list_ids()))
        elif names and key.type.startswith("plug-in"):
            keys.append((f"{key.key}.name", names))
        elif "section" not in key.type and "NAME" not in key.key:
            keys.append((key.key, key.values or names))
    return keys


def _pairs(keys: _Keys, prefix: str, *, name: str) -> dict[str, Any]:  # as shtab reads it
    """Return the completion of KEY=VALUE by the keys below `prefix`, as a shell function of this name."""
    own = [(key.removeprefix(prefix), values) for key, values in keys if key.startswith(prefix)]
    assigned = " ".join(f"{key}=" for key, _ in own)
    pairs = " ".join(f"{key}={value}" for key, values in own for value in values)
    functions = {shell: form.format(name=name, keys=assigned, pairs=pairs) for shell, form in _PAIR_FUNCTIONS.items()}
    return {"bash": name, "zsh": name, "fish": f"({name})", "preamble": functions}
