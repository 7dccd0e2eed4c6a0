"""A browser for pages: the system's Chromium; without it or its driver, tests are skipped with the reason."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def chromium() -> Iterator:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[test]'")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Window:
    """A file in a browser window, with its errors and its requests to the outside."""

    def __init__(self, browser, file: Path, *, width=1280, height=800, dark=False, scripts=True, hash=""):
        how = {"viewport": {"width": width, "height": height}, "color_scheme": "dark" if dark else "light"}
        self.context = browser.new_context(**how, java_script_enabled=scripts, reduced_motion="reduce")
        self.page = self.context.new_page()
        self.page.set_default_timeout(5000)
        self.page.set_default_navigation_timeout(60_000)  # a large page on a busy machine
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda entry: self.errors.append(entry.text) if entry.type in {"error", "warning"} else None
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = file.resolve().as_uri()
        self.page.goto(self.address + hash)

    @property
    def outside(self) -> list[str]:
        """Requests for anything but the file itself."""
        return [url for url in self.requests if not url.startswith(("data:", self.address))]

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def small(self) -> list[str]:
        """Texts on the page that are smaller than 12 pixels."""
        return self.page.evaluate(
            """[...document.querySelectorAll("body *")].filter(each =>
              each.checkVisibility() && [...each.childNodes].some(node => node.nodeType == 3 && node.data.trim())
              && parseFloat(getComputedStyle(each).fontSize) < 12).map(each => each.outerHTML.slice(0, 80))"""
        )

    def barriers(self) -> list[str]:
        """What axe finds serious or critical on the page, with all folds open."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        self.page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        violations = axe.run(self.page).response["violations"]
        return [
            f"{each['id']} ({each['impact']}): {each['help']}: {each['nodes'][0]['html'][:120]}"
            for each in violations
            if each["impact"] in {"serious", "critical"}
        ]


@pytest.fixture
def browse(chromium) -> Iterator:
    """Open a file: `browse(file, width=390, dark=True, hash="#L1.H2")`."""
    opened: list[Window] = []

    def show(file: Path, **how) -> Window:
        opened.append(Window(chromium, file, **how))
        return opened[-1]

    yield show
    for window in opened:
        window.context.close()
