#!/bin/bash
set -e
cd /app
python3 - <<'CODE'
import json


def merge(base, site):
    result = dict(base)
    for key, value in site.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merge(result[key], value)
        elif key == "plugins":
            result[key] = result.get(key, []) + [item for item in value if item not in result.get(key, [])]
        else:
            result[key] = value
    return result


merged = merge(json.load(open("base.json")), json.load(open("site.json")))
with open("merged.json", "w") as file:
    file.write(json.dumps(merged, indent=2, sort_keys=True) + "\n")
CODE
