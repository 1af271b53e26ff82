"""The files."""

from dataclasses import replace

from envgym.envs.tools._office import app_base
from envgym.envs.tools._office.app_base import OfficeApp, RecordFields
from envgym.envs.tools._office.state import FileFolder, TextFile, show_record
from envgym.errors import ToolError


class Files(OfficeApp):
    """Tools of the files."""

    def files_list(self, folder: str = "") -> list[RecordFields] | str:
        """List the files of a folder without their contents.

        Args:
            folder: Such as /reports; all files if empty.
        """
        if not folder.strip():
            files = [*self.office.files.values()]
        else:
            parent = app_base.find(self.office.folders, folder, "folder", "files_folders").path
            files = [file for file in self.office.files.values() if parent_of(file.path) == parent]
        return app_base.list_records(sorted(files, key=lambda file: file.path), "content")

    def files_folders(self) -> list[str]:
        """List the folders."""
        return sorted(self.office.folders)

    def files_search(self, text: str) -> list[RecordFields] | str:
        """Find files by words of their path or content.

        Args:
            text: Words that all must occur.
        """
        files = app_base.find_matching(
            self.office.files, text, lambda file: (file.path, file.content), lambda file: True
        )
        return app_base.list_records(files, "content")

    def files_read(self, path: str) -> RecordFields:
        """Show a whole file.

        Args:
            path: Such as /reports/costs.csv.
        """
        return show_record(self._file(path))

    def files_create(self, path: str, content: str) -> RecordFields:
        """Create a file in a folder that exists.

        Args:
            path: Such as /reports/costs.csv.
            content: Its text.
        """
        return self._keep(
            TextFile(self._free(path), app_base.check_text("content", content, required=False), self.office.today)
        )

    def files_write(self, path: str, content: str) -> RecordFields:
        """Replace the content of a file.

        Args:
            path: Such as /reports/costs.csv.
            content: Its new text.
        """
        file, text = self._file(path), app_base.check_text("content", content, required=False)
        return self._keep(replace(file, content=text, modified=self.office.today))

    def files_move(self, path: str, new_path: str) -> RecordFields:
        """Move a file to a folder that exists, or rename it.

        Args:
            path: Such as /reports/costs.csv.
            new_path: The whole new path, such as /archive/costs.csv.
        """
        file = self._file(path)
        moved = replace(file, path=self._free(new_path))
        self.office = self.office.drop(file)
        return self._keep(moved)

    def files_delete(self, path: str) -> str:
        """Delete a file.

        Args:
            path: Such as /reports/costs.csv.
        """
        file = self._file(path)
        self.office = self.office.drop(file)
        return f"{file.path} is deleted."

    def files_share(self, path: str, email: str) -> RecordFields:
        """Let somebody read a file.

        Args:
            path: Such as /reports/costs.csv.
            email: Address of somebody in the contacts.
        """
        file, who = self._file(path), app_base.check_colleague(self.office, email)
        if who in file.shared:
            raise ToolError(f"{file.path} is shared with {who} already.")
        return self._keep(replace(file, shared=(*file.shared, who)))

    def files_unshare(self, path: str, email: str) -> RecordFields:
        """Let somebody no longer read a file.

        Args:
            path: Such as /reports/costs.csv.
            email: Address of somebody it is shared with.
        """
        file, who = self._file(path), app_base.check_address(email)
        if who not in file.shared:
            raise ToolError(f"{file.path} is not shared with {who}; it is with {', '.join(file.shared) or 'nobody'}.")
        return self._keep(replace(file, shared=tuple(other for other in file.shared if other != who)))

    def files_create_folder(self, path: str) -> str:
        """Create a folder.

        Args:
            path: Such as /archive/2025.
        """
        new = _path(path)
        if new in self.office.folders:
            raise ToolError(f"The folder {new} is there already.")
        if parent_of(new) and parent_of(new) not in self.office.folders:
            raise ToolError(f"There is no folder {parent_of(new)}; create it first.")
        self.office = self.office.put(FileFolder(new))
        return f"{new} is created."

    def _file(self, path: str) -> TextFile:
        return app_base.find(self.office.files, path, "file", "files_list")

    def _free(self, path: str) -> str:
        new = _path(path)
        if parent_of(new) not in self.office.folders:
            raise ToolError(f"There is no folder {parent_of(new) or '/'!r}; files_create_folder creates one.")
        if new in self.office.files or new in self.office.folders:
            raise ToolError(f"{new} is there already.")
        return new


def parent_of(path: str) -> str:
    """Return the folder of a path; empty for a folder at the top."""
    return path.rpartition("/")[0]


def _path(text: str) -> str:
    path = app_base.check_text("path", text)
    parts = path.split("/")
    if parts[0] or len(path) > 200 or not all(parts[1:]) or {".", ".."} & set(parts):
        raise ToolError(f"path must be written like /reports/costs.csv, got {text[:60]!r}.")
    return path
