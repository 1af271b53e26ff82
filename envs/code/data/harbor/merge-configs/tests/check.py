"""Write a reward for each rule to reward.json."""

import subprocess
import sys


def as_agent(*command: str, given: str = "") -> str:
    """Return the output of a command of the agent's user; none if it fails or takes long."""
    words = ["/usr/bin/setpriv", "--reuid=agent", "--regid=agent", "--clear-groups", "--", *command]
    try:
        done = subprocess.run(words, input=given, capture_output=True, text=True, errors="replace", timeout=20, cwd="/app")
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout if done.returncode == 0 else ""

import json

text = as_agent("/bin/cat", "merged.json")
try:
    merged = json.loads(text)
except (ValueError, RecursionError):
    merged = {}
merged = merged if isinstance(merged, dict) else {}
server, limits = merged.get("server"), merged.get("limits")
right = {"port": 443, "host": "localhost", "tls": {"enabled": True, "cert": "a.pem"}}
parts = {
    "nested": server == right and merged.get("tags") == ["z"] and merged.get("name") == "shop",
    "removed": bool(merged) and "debug" not in merged and limits == {"users": 10, "rate": 2.5},
    "plugins": merged.get("plugins") == ["search", "cart", "mail"],
    "form": bool(merged) and text == json.dumps(merged, indent=2, sort_keys=True) + "\n",
}
if merged.get("region") != {"name": "north"}:
    parts = dict.fromkeys(parts, False)
with open("/logs/verifier/reward.json", "w", encoding="utf-8") as file:
    json.dump({"reward": sum(parts.values()) / len(parts), **{name: float(is_right) for name, is_right in parts.items()}}, file)
