"""Put an exported folder on the Hugging Face Hub, as the last and separate step.

The folder is only read. Whatever fails, it stays as it was, and the same command can be run again.
"""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from envgym.errors import InvalidInput
from envgym.export.provenance import PROVENANCE
from envgym.runs.directory import read_object

_MODEL: Final = "model"
_WHERE: Final = "envgym push"
_NAME: Final = re.compile(r"(?=.{1,96}$)(?:[\w.-]+/)?[\w.-]+", re.ASCII)
_REFUSED: Final = re.compile(r"--|\.\.|(?:^|/)[.-]|[.-](?:/|$)|\.git$")
"""What the Hub allows in no name."""
_STAYS: Final = "the folder is complete and unchanged; push it again later"


def push_folder(folder: Path, repo: str, *, private: bool = False) -> str:
    """Upload a folder that `envgym export` wrote, and return the address of its repository.

    The repository is made where it is missing, and loses files that the folder lacks, but `.gitattributes`. The
    endpoint and the token are those of the user's login (`HF_ENDPOINT`, `HF_TOKEN`, `hf auth login`).

    Args:
        folder: exported model or data set.
        repo: `name` or `owner/name`.
        private: make a private repository, and upload to no public one.

    Raises: InvalidInput: no name of a repository; no such folder; the extra is not installed; nobody is logged in; or
        the Hub is offline, not reached, or refuses.
    """
    is_name = _NAME.fullmatch(repo) and not _REFUSED.search(repo)
    must = "be name or owner/name, of at most 96 letters, digits, single - and ., and _"
    InvalidInput.unless(is_name, "REPO", must, repo, where=_WHERE, do="correct it, as in me/my-model")
    repo_type = _type_of(folder)
    if find_spec("huggingface_hub") is None:
        do = "install the extra envgym[hub]"
        raise InvalidInput.of("package huggingface_hub", "be installed", "none", where=_WHERE, do=do)
    from huggingface_hub import HfApi, constants, get_token

    if constants.HF_HUB_OFFLINE:
        must, got = "be online", "HF_HUB_OFFLINE=1"
        raise InvalidInput.of("Hub", must, got, where=_WHERE, do=f"unset HF_HUB_OFFLINE; {_STAYS}")
    if get_token() is None:
        do = f"run `hf auth login`, or set HF_TOKEN; {_STAYS}"
        raise InvalidInput.of("user", "be logged in to the Hub", "no token", where=_WHERE, do=do)
    try:
        return _upload(HfApi(), folder, repo, repo_type=repo_type, private=private)
    except InvalidInput:
        raise
    except Exception as error:  # the client's, of HTTP and of its uploader, differ between versions
        raise InvalidInput.of(
            "push", "succeed", _reason(error), where=f"{_WHERE} {folder} {repo}", do=_STAYS
        ) from error


def _upload(api: Any, folder: Path, repo: str, *, repo_type: str, private: bool) -> str:  # HfApi
    created = api.create_repo(repo, repo_type=repo_type, private=private or None, exist_ok=True)
    if private and not api.repo_info(created.repo_id, repo_type=repo_type).private:
        do = f"make {created.repo_id} private on the Hub, or choose another name; {_STAYS}"
        raise InvalidInput.of("repository", "be private", "a public one", where=f"{_WHERE} --private", do=do)
    api.upload_folder(
        repo_id=created.repo_id,
        folder_path=folder,
        repo_type=repo_type,
        commit_message="Upload with envgym",
        delete_patterns=["*"],  # what the folder lacks; `.gitattributes` stays
    )
    return str(created)


def _type_of(folder: Path) -> str:
    """Return `model` or `dataset`. Raises: InvalidInput: the folder is no export, or holds a link."""
    do = "name a folder that `envgym export` wrote"
    is_export = (folder / PROVENANCE).is_file() and (folder / "README.md").is_file()
    must = f"hold {PROVENANCE} and README.md"
    InvalidInput.unless(is_export, "FOLDER", must, str(folder), where=_WHERE, do=do)
    links = [path for path in folder.rglob("*") if path.is_symlink()]
    if links:
        got, do = f"a link, {links[0].relative_to(folder)}", "replace it by the file"
        raise InvalidInput.of("FOLDER", "hold files of its own", got, where=_WHERE, do=do)
    return _MODEL if read_object(folder / PROVENANCE).get("kind") == _MODEL else "dataset"


def _reason(error: BaseException) -> str:
    """Return the messages of the error and its first cause, in one line."""
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    return "; ".join(dict.fromkeys(map(_words, (causes[0], causes[-1]))))


def _words(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}" if lines else type(error).__name__
