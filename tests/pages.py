"""What is on a written page? Its tags and attributes, its visible text, and the code it lets run."""

import base64
import re
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """The tags and attributes of a page, its visible text, and the content of its scripts and styles."""

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
    """The addresses beyond itself that the page would fetch or link to."""
    links = [value or "" for _, attrs in page.tags for key, value in attrs.items() if key in {"src", "href", "srcset"}]
    return [link for link in links if not link.startswith(("data:image/svg+xml;base64,", "#"))]


def unlisted(page: Page) -> list[str]:
    """Scripts and styles whose hash is not in the page's policy: the first letters of each."""
    (policy,) = [
        attrs["content"] or "" for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    kinds = [(tag, attrs) for tag, attrs in page.tags if tag in {"script", "style"}]
    run = [
        source
        for (_, attrs), source in zip(kinds, page.sources, strict=True)
        if attrs.get("type") != "application/json"
    ]
    digests = {source: base64.b64encode(sha256(source.encode()).digest()).decode() for source in run}
    inline = [f"{tag} {key}" for tag, attrs in page.tags for key in attrs if key == "style" or key.startswith("on")]
    return [source[:40] for source, digest in digests.items() if f"'sha256-{digest}'" not in policy] + inline


_SINGULAR = "is|was|of|has|as|less|thus|its|this|plus|minus|across"  # words in s that follow a singular
_SLIPS = {
    "one of many": rf"(?<![\w.,:\u202f])1 (?!(?:{_SINGULAR})\b)[a-z-]+[^s\W\d]s\b(?![’'])",
    "a literal backtick": r"`",
    "a hyphen for a minus": r"(?<![\w:.-])-\d",
    "thousands with a comma": r"\d,\d{3}(?!\d)",
    "thousands run together": r"(?<![\w.,:/#-])[1-9]\d{4,}(?![\w.,-]*[a-z])",
}


def slips(page: str) -> list[str]:
    """What a proofreader would mark in a page's own words, without code, file names and prompts."""
    bare = re.sub(r"<(script|style|code|title)\b.*?</\1>|<div class=\"tokens\">.*?</div>", " ", page, flags=re.DOTALL)
    text = " ".join(Page(bare.replace("<td", " <td").replace("</", " </")).text.split())
    return [
        f"{what}: …{text[max(0, result.start() - 40) : result.end() + 30]}…"
        for what, slip in _SLIPS.items()
        for result in re.finditer(slip, text)
    ]


def retold(page: str) -> list[str]:
    """Text alternatives of figures that say nothing, or no more than the title or caption."""
    result = []
    for figure in re.findall(r"<figure>.*?</figure>", page, flags=re.DOTALL):
        (title,), (alt,) = re.findall(r'aria-label="Figure: (.*?)"', figure), re.findall(r' alt="(.*?)"', figure)
        (caption,) = re.findall(r"<figcaption>(.*?)</figcaption>", figure, flags=re.DOTALL)
        if not alt.strip() or alt.startswith(title) or alt in caption:
            result.append(alt)
    return result
