"""A server of text files in folders. Files can be changed after `start_editing`."""

from envgym.envs.tools._mcp.servers.protocol import Json, McpServer, Refusal, serve


class FileServer(McpServer):
    """Files by path, such as /plans/budget.txt; a folder is there as long as a file lies in it."""

    name = "files"
    graded = ("files",)

    def new_session(self) -> Json:
        return {"editing": False}

    def groups(self) -> frozenset[str]:
        return frozenset({"editing"} if self.session["editing"] else {"reading"})

    def list_folder(self, folder: str) -> list[str]:
        head = f"{folder.rstrip('/')}/"
        inside = [path.removeprefix(head) for path in self.tables["files"] if path.startswith(head)]
        if not inside:
            raise Refusal(f"There is no folder {folder!r:.100}.")
        return sorted({head + name.split("/")[0] + ("/" if "/" in name else "") for name in inside})

    def read_file(self, path: str) -> str:
        return str(self.find("files", path, "file")["text"])

    def search_files(self, text: str) -> list[str]:
        query = text.lower()
        return sorted(path for path, file in self.tables["files"].items() if query in str(file["text"]).lower())

    def start_editing(self) -> str:
        self.session["editing"] = True
        return "Files can be changed now."

    def stop_editing(self) -> str:
        self.session["editing"] = False
        return "Files cannot be changed any more."

    def write_file(self, path: str, text: str) -> str:
        _check_path(path)
        self.tables["files"][path] = {"path": path, "text": text}
        return f"Written: {path}."

    def append_line(self, path: str, line: str) -> str:
        file = self.find("files", path, "file")
        if "\n" in line:
            raise Refusal("A line holds no line break.")
        file["text"] = f"{file['text']}\n{line}" if file["text"] else line
        return f"Appended to {path}."

    def move_file(self, path: str, target: str) -> str:
        file = self.find("files", path, "file")
        _check_path(target)
        if target in self.tables["files"]:
            raise Refusal(f"There is a file {target!r:.100} already.")
        del self.tables["files"][path]
        self.tables["files"][target] = {**file, "path": target}
        return f"Moved to {target}."

    def delete_file(self, path: str) -> str:
        self.find("files", path, "file")
        del self.tables["files"][path]
        return f"Deleted: {path}."


def _check_path(path: str) -> None:
    parts = path.split("/")
    if parts[0] or len(parts) < 3 or not all(part.strip() and part not in (".", "..") for part in parts[1:]):
        raise Refusal(f"A path is like /plans/budget.txt, a file in a folder, not {path!r:.100}.")


if __name__ == "__main__":
    serve(FileServer)
