"""The code of an answer: which of its fenced blocks count, and what is read where there is none.

A block counts by what it holds and how it is marked, and of several that fit the last one counts. So blocks of another
language, a usage example, sample output or tests after the solution change nothing. Definitions of other blocks are
added where the block uses names that it does not define.
"""

import ast
import builtins
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from textwrap import dedent

from envgym.envs.code._languages import Language
from envgym.parsing.fences import FencedBlock, read_fences

_PYTHON = ("python", "pycon")
_MAX_PARSED = 100_000
"""Characters of code that is parsed here; longer code is run as it is."""
_MAX_CUTS = 8
_MAX_RUNS = 8
"""Of lines of code in a text without fences."""
_PROMPT = re.compile(r"[ \t]*(?:>>>|\.\.\.)(?: |$)")
_CODE_LINE = re.compile(
    r"^(?:from [\w.]+ import\b|import \w|(?:async )?def \w+ ?\(|class \w+ ?[:(]|@\w|if __name__\b)", re.MULTILINE
)
_COMMENTS = r"(?:\s|--[^\n]*(?:\n|\Z)|/\*(?:[^*]|\*(?!/))*\*/)*"
_STATEMENT = re.compile(rf"{_COMMENTS}(?:SELECT|WITH|VALUES)\b", re.IGNORECASE)
_QUERY_START = re.compile(
    r"(?:^|:|<\w{1,20}>)[ \t*`]*\b(?P<query>(?:SELECT|select)\s|(?:WITH|with)\s+(?:(?:RECURSIVE|recursive)\s+)?\w+\s*"
    r"(?:\([^()]*\)\s*)?(?:AS|as)\b)",
    re.MULTILINE,
)
_QUERY_END = re.compile(
    r";[ \t\r]*(?:\n|\Z|(?=</\w))|</\w{1,20}>"
    r"|\n[ \t\r]*\n(?![ \t]*(?:SELECT|FROM|WHERE|GROUP|HAVING|ORDER|LIMIT|UNION|JOIN)\b)",
    re.IGNORECASE,
)
_BACKTICK = re.compile("`")
_CODE_SPAN = re.compile(r"`(?:`{2})?(?:sql\b)?\s*((?:SELECT|WITH|VALUES)\b[^`]*)`", re.IGNORECASE)
_SHELL_PROMPT = re.compile(r"^[ \t]*(?:sqlite>|\.\.\.>)[ \t]?", re.MULTILINE)
_DEFINITIONS = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
)


def read_function(text: str, name: str, prompt: str) -> str | None:
    """Return the program that an answer gives for a function, or None.

    The last Python or unmarked block that defines the function counts, else another block that does, else all of the
    text. Without a definition an indented block continues the prompt, as a model without instructions does.
    """
    blocks = _blocks(text)
    usual = [block for block in blocks if block.language in (*_PYTHON, "")]
    top_level = re.compile(
        rf"^(?:(?:async[ \t]+)?def[ \t]+{re.escape(name)}\b|{re.escape(name)}[ \t]*=[^=])", re.MULTILINE
    )
    anywhere = re.compile(rf"^[ \t]+(?:async[ \t]+)?def[ \t]+{re.escape(name)}\b", re.MULTILINE)
    codes = {block: _python_code(block.text) for block in blocks}
    for candidates in (usual, blocks):
        for pattern in (top_level, anywhere):
            for block in reversed(candidates):
                if pattern.search(codes[block]):
                    others = [codes[other] for other in usual if other is not block]
                    return _with_definitions(codes[block], others, own=name)
    if top_level.search(text):
        return _code_of_text(text)
    bodies = [block.text for block in usual] or ([] if blocks else [text])
    return prompt + bodies[-1] if bodies and bodies[-1][:1] in " \t" and bodies[-1].strip() else None


def read_program(text: str, name: str, language: Language) -> str | None:
    """Return the program that an answer gives in a language, or None.

    The last block that is marked with the language and reads the input counts, else the last one that is marked, else
    the last unmarked one that reads the input, else the last block. An answer without a block counts if it is Python.
    """
    blocks = _blocks(text)
    is_python = name == "python"
    reads = re.compile(language.reads)
    marked = [block for block in blocks if block.language == name]
    unmarked = [block for block in blocks if not block.language]
    others = [block for block in blocks if block not in marked and block not in unmarked]
    helpers = [_python_code(block.text) for block in (*marked, *unmarked)] if is_python else []

    def program_of(block: FencedBlock) -> str:
        code = _python_code(block.text) if is_python else block.text
        return _with_definitions(code, [helper for helper in helpers if helper != code]) if is_python else code

    for candidates in (marked, unmarked, others):
        programs = [program_of(block) for block in candidates]
        if is_python and candidates is unmarked and len(programs) > 1:
            programs = [program for program in programs if _parsed(program) is not None] or programs
        reading = _last(programs, lambda program: reads.search(program) is not None)
        if reading is not None or (programs and candidates is marked):
            return reading if reading is not None else programs[-1]
    if blocks:
        return program_of(blocks[-1])
    code = _code_of_text(text) if is_python and reads.search(text) else None
    return code if code and _parsed(code) is not None else None


def read_query(text: str) -> str | None:
    """Return the query of an answer, or None.

    The last block that is a query counts, among those that are marked as SQL or not marked; else the last block of SQL,
    else the last query that begins a line of the text or stands between backticks.
    """
    blocks = _blocks(text)
    marked = [block.text for block in blocks if block.language == "sql"]
    likely = [_without_shell(block.text) for block in blocks if block.language in ("sql", "")]
    query = _last(likely, lambda code: _STATEMENT.match(code) is not None)
    if query is not None:
        return _bare_query(query)
    if marked:
        return _bare_query(marked[-1])
    queries = _queries_of_text(_without_shell(text)) or _CODE_SPAN.findall(text)
    if not queries and not blocks and _STATEMENT.match(text):
        queries = [text]
    if not queries:
        queries = [block.text for block in blocks]
    return _bare_query(queries[-1]) if queries else None


def _blocks(text: str) -> list[FencedBlock]:
    return [block for block in read_fences(text, inline=True) if block.text.strip()]


def _last(codes: Sequence[str], is_wanted: Callable[[str], bool]) -> str | None:
    return next((code for code in reversed(codes) if is_wanted(code)), None)


# ---- Python ----------------------------------------------------------------------------------------------------------


def _python_code(text: str) -> str:
    """Return a block's code: of a transcript what was typed, of an indented definition the same without indentation."""
    stripped = text.lstrip("\n")
    if stripped.lstrip().startswith(">>>"):
        prompts = [(line, _PROMPT.match(line)) for line in stripped.split("\n")]
        return "\n".join(line[prompt.end() :] for line, prompt in prompts if prompt is not None)
    if stripped[:1] in (" ", "\t") and _CODE_LINE.match(stripped.lstrip()):
        return dedent(stripped)
    return text


def _with_definitions(code: str, others: Sequence[str], own: str = "") -> str:
    """Put definitions of other blocks before code that uses names which it does not define."""
    if not others or not (missing := _missing_names(code)):
        return code
    num_missing = len(missing)
    added: list[str] = []
    for other in others:
        tree = _parsed(other)
        for statement in tree.body if tree else ():
            if isinstance(statement, _DEFINITIONS) and own not in _bound_names([statement]):
                added.append(ast.unparse(statement))
                missing -= _bound_names([statement])
    return "\n\n".join([*added, code]) if len(missing) < num_missing else code


def _missing_names(code: str) -> set[str]:
    tree = _parsed(code)
    if tree is None:
        return set()
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return used - _bound_names(ast.walk(tree)) - set(dir(builtins)) - {"exit", "quit", "__file__"}


def _bound_names(nodes: Iterable[ast.AST]) -> set[str]:
    names: set[str] = set()
    for top in nodes:
        for node in [top, *getattr(top, "targets", ()), *([top.target] if isinstance(top, ast.AnnAssign) else [])]:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.Tuple | ast.List):
                names |= {item.id for item in node.elts if isinstance(item, ast.Name)}
            elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
                names.add(node.name)
    return names


def _parsed(code: str) -> ast.Module | None:
    if len(code) > _MAX_PARSED:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _code_of_text(text: str) -> str:
    """Return the code in a text without fences: all runs of lines that Python can read, each from a line of code on."""
    if len(text) > _MAX_PARSED or _parsed(text) is not None:
        return text
    runs: list[str] = []
    rest = text
    while len(runs) < _MAX_RUNS and (start := _CODE_LINE.search(rest)):
        lines = rest[start.start() :].split("\n")
        stop = len(lines)
        for _ in range(_MAX_CUTS):
            readable = _num_readable(lines[:stop])
            if readable == stop:
                break
            stop = readable
        runs.append("\n".join(lines[:stop]))
        rest = "\n".join(lines[max(stop, 1) :])
    return "\n".join(runs)


def _num_readable(lines: Sequence[str]) -> int:
    """Return how many lines come before the one at which Python stops reading."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(lines))
    except SyntaxError as error:
        return min(len(lines), error.lineno or 1) - 1
    except (ValueError, RecursionError, MemoryError):
        return 0
    return len(lines)


# ---- SQL -------------------------------------------------------------------------------------------------------------


def _queries_of_text(text: str) -> list[str]:
    queries: list[str] = []
    position = 0
    while start := _QUERY_START.search(text, position):
        begin = start.start("query")
        end = (_BACKTICK if text[begin - 1 : begin] == "`" else _QUERY_END).search(text, start.end())
        position = end.end() if end else len(text)
        queries.append(text[begin : end.start() if end else len(text)])
    return queries


def _without_shell(text: str) -> str:
    return _SHELL_PROMPT.sub("", text) if "sqlite>" in text else text


def _bare_query(query: str) -> str | None:
    return query.strip().rstrip(";").rstrip() or None
