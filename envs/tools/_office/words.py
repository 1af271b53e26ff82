"""What people, events, mails, files and tickets are called: `data/office_words.toml`."""

from collections.abc import Mapping

from envgym.envs.data_files import Wordings, read_toml

_DATA = read_toml("tools/data/office_words.toml")

FIRST_NAMES: tuple[str, ...] = tuple(_DATA["first_names"])
LAST_NAMES: tuple[str, ...] = tuple(_DATA["last_names"])
COMPANIES: tuple[str, ...] = tuple(_DATA["companies"])
PARTNERS: tuple[str, ...] = tuple(_DATA["partners"])
TEAMS: Mapping[str, tuple[str, str]] = {team: (lead, member) for team, (lead, member) in _DATA["teams"].items()}
"""Team -> titles of its lead and of the others."""
EVENTS: tuple[str, ...] = tuple(_DATA["events"])
NEW_EVENTS: tuple[str, ...] = tuple(_DATA["new_events"])
PLACES: tuple[str, ...] = tuple(_DATA["places"])
MAILS: tuple[tuple[str, str], ...] = tuple((subject, body) for subject, body in _DATA["mails"])
TICKETS: tuple[tuple[str, str], ...] = tuple((title, text) for title, text in _DATA["tickets"])
FILES: tuple[tuple[str, str, str], ...] = tuple((folder, name, content) for folder, name, content in _DATA["files"])
FOLDERS: tuple[str, ...] = tuple(_DATA["folders"])
COMMENTS: tuple[str, ...] = tuple(_DATA["comments"])
REPLIES: tuple[str, ...] = tuple(_DATA["replies"])
NOTES: tuple[str, ...] = tuple(_DATA["notes"])
request = Wordings("tools/data/office_requests.toml")
