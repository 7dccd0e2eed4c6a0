"""What is on a written page: its tags with their attributes, its visible text, and what it lets run."""

import base64
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """The tags and attributes of a page, its visible text, and what stands in its scripts and styles."""

    def __init__(self, source: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.sources: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in {"script", "style"}:
            self.sources.append("")

    def handle_data(self, data):
        if self.cdata_elem in {"script", "style"}:
            self.sources[-1] += data
        else:
            self.text += data


def page_of(out: Path) -> Page:
    return Page((out / "report.html").read_text("utf-8"))


def outside_addresses(page: Page) -> list[str]:
    """What the page would fetch, or lead to, beyond itself."""
    links = [value or "" for _, attrs in page.tags for key, value in attrs.items() if key in {"src", "href", "srcset"}]
    return [link for link in links if not link.startswith(("data:image/svg+xml;base64,", "#"))]


def unlisted(page: Page) -> list[str]:
    """Scripts and styles that run, or would, without their hash in the page's policy; the first letters of each."""
    (policy,) = [
        attrs["content"] or "" for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    kinds = [(tag, attrs) for tag, attrs in page.tags if tag in {"script", "style"}]
    run = [
        source
        for (_, attrs), source in zip(kinds, page.sources, strict=True)
        if attrs.get("type") != "application/json"
    ]
    known = {source: base64.b64encode(sha256(source.encode()).digest()).decode() for source in run}
    inline = [f"{tag} {key}" for tag, attrs in page.tags for key in attrs if key == "style" or key.startswith("on")]
    return [source[:40] for source, digest in known.items() if f"'sha256-{digest}'" not in policy] + inline
