"""A server of a knowledge base. Pages are changed in a draft, which must be published to count."""

from envgym.envs.tools._mcp.servers.protocol import Json, McpServer, Refusal, serve


class KnowledgeServer(McpServer):
    """Pages by title, each in a section, with its lines."""

    name = "knowledge"
    graded = ("pages",)

    def new_session(self) -> Json:
        return {"draft": None}

    def groups(self) -> frozenset[str]:
        return frozenset({"pages"} if self.session["draft"] is None else {"draft"})

    def list_pages(self, section: str) -> list[str]:
        titles = sorted(title for title, page in self.tables["pages"].items() if page["section"] == section)
        if not titles:
            sections = sorted({page["section"] for page in self.tables["pages"].values()})
            raise Refusal(f"There is no section {section!r:.100}. The sections are {', '.join(sections)}.")
        return titles

    def search_pages(self, text: str) -> list[str]:
        query = text.lower()
        return sorted(
            title for title, page in self.tables["pages"].items() if query in "\n".join([title, *page["lines"]]).lower()
        )

    def read_page(self, title: str) -> Json:
        return self.find("pages", title, "page")

    def start_draft(self, title: str) -> Json:
        page = self.find("pages", title, "page")
        self.session["draft"] = {**page, "lines": list(page["lines"])}
        return self.show_draft()

    def show_draft(self) -> Json:
        return dict(self.session["draft"])

    def add_line(self, line: str) -> Json:
        self.session["draft"]["lines"].append(_check_line(line))
        return self.show_draft()

    def replace_line(self, number: int, line: str) -> Json:
        self._line(number)
        self.session["draft"]["lines"][number - 1] = _check_line(line)
        return self.show_draft()

    def remove_line(self, number: int) -> Json:
        self._line(number)
        del self.session["draft"]["lines"][number - 1]
        return self.show_draft()

    def set_section(self, section: str) -> Json:
        sections = sorted({page["section"] for page in self.tables["pages"].values()})
        if section not in sections:
            raise Refusal(f"There is no section {section!r:.100}. The sections are {', '.join(sections)}.")
        self.session["draft"]["section"] = section
        return self.show_draft()

    def publish(self) -> str:
        draft = self.session["draft"]
        self.tables["pages"][draft["title"]] = draft
        self.session["draft"] = None
        return f"Published: {draft['title']}."

    def discard_draft(self) -> str:
        self.session["draft"] = None
        return "The draft is dropped."

    def _line(self, number: int) -> None:
        count = len(self.session["draft"]["lines"])
        if not 1 <= number <= count:
            raise Refusal(f"The draft has lines 1 to {count}, not {number}.")


def _check_line(line: str) -> str:
    if "\n" in line or not line.strip():
        raise Refusal("A line is not empty and holds no line break.")
    return line


if __name__ == "__main__":
    serve(KnowledgeServer)
