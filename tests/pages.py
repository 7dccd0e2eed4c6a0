"""What is on a written page: its tags with their attributes, and its visible text."""

from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """The tags and attributes of a page, and its visible text."""

    def __init__(self, source: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def page_of(out: Path) -> Page:
    return Page((out / "report.html").read_text("utf-8"))


def outside_addresses(page: Page) -> list[str]:
    """What the page would fetch, or lead to, beyond itself."""
    links = [value or "" for _, attrs in page.tags for key, value in attrs.items() if key in {"src", "href", "srcset"}]
    return [link for link in links if not link.startswith(("data:image/svg+xml;base64,", "#"))]
