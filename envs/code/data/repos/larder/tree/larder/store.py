"""A key-value store in a file that only grows: each line is one change, and the last one counts."""

import json
import os


class Store:
    """Maps texts to what JSON can hold."""

    def __init__(self, path):
        """Open a store; read what is there."""
        self.path = path
        self._values = {}
        self._undo = None
        self.num_lines = 0
        if os.path.exists(path):
            self._read()

    def _read(self):
        size = 0
        with open(self.path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break  # a change that was not written to its end
                size += len(line)
                change = json.loads(line)
                self.num_lines += 1
                if change["op"] == "set":
                    self._values[change["key"]] = change["value"]
                else:
                    self._values.pop(change["key"], None)
        os.truncate(self.path, size)

    def get(self, key, default=None):
        """Return the value of a key."""
        return self._values.get(key, default)

    def set(self, key, value):
        """Set the value of a key."""
        self._change({"op": "set", "key": key, "value": value})

    def delete(self, key):
        """Drop a key. Raises KeyError: there is none."""
        if key not in self._values:
            raise KeyError(key)
        self._change({"op": "delete", "key": key})

    def keys(self, prefix=""):
        """Return the keys that begin with a prefix, sorted."""
        return sorted(key for key in self._values if key.startswith(prefix))

    def __len__(self):
        """Return the number of keys."""
        return len(self._values)

    def compact(self):
        """Write the file anew, with one line for each key."""
        temporary = f"{self.path}.new"
        with open(temporary, "w", encoding="utf-8") as file:
            for key in sorted(self._values):
                file.write(_line({"op": "set", "key": key, "value": self._values[key]}))
        os.replace(temporary, self.path)
        self.num_lines = len(self._values)

    def __enter__(self):
        """Begin a transaction: what happens in it is written at its end, or undone if an error ends it."""
        if self._undo is not None:
            raise RuntimeError("a transaction is open already")
        self._undo = (dict(self._values), [])
        return self

    def __exit__(self, kind, error, trace):
        """End the transaction."""
        before, changes = self._undo
        self._undo = None
        if kind is None:
            self._write(changes)
        else:
            self._values = before

    def _change(self, change):
        line = _line(change)
        if change["op"] == "set":
            self._values[change["key"]] = json.loads(line)["value"]
        else:
            del self._values[change["key"]]
        if self._undo is None:
            self._write([line])
        else:
            self._undo[1].append(line)

    def _write(self, lines):
        with open(self.path, "a", encoding="utf-8") as file:
            file.writelines(lines)
        self.num_lines += len(lines)


def _line(change):
    return json.dumps(change, ensure_ascii=False, sort_keys=True) + "\n"
