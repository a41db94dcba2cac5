"""A report that is open in a browser."""

from __future__ import annotations

from typing import Any

CHROMIUM_ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
_MS = 20_000


class Opened:
    """One page, which must say nothing on the console and ask the network for nothing."""

    def __init__(
        self, browser: Any, url: str, address: str = "", *, width: int = 1280, height: int = 800, dark: bool = False
    ) -> None:
        self._context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        self.page = self._context.new_page()
        self.wrong: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(f"{url}{address}")
        self.page.wait_for_selector("html[data-shown]", timeout=_MS)

    def go(self, address: str, shown: str | None = None) -> None:
        """Follow an address inside of the report, and wait for the view."""
        self.page.evaluate(
            "address => { document.documentElement.removeAttribute('data-shown'); location.hash = address; }", address
        )
        self.page.wait_for_selector(f"html[data-shown{f'={shown}' if shown else ''}]", timeout=_MS)

    def text(self, selector: str) -> str:
        """Return the text of one element."""
        return str(self.page.locator(selector).first.inner_text(timeout=_MS))

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_inner_texts()]

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")

    @property
    def address(self) -> str:
        return str(self.page.evaluate("decodeURIComponent(location.hash)"))

    def wait_for_address(self, part: str) -> None:
        self.page.wait_for_function("part => decodeURIComponent(location.hash).includes(part)", arg=part, timeout=_MS)

    def close(self) -> None:
        """Close it.

        Raises:
            AssertionError: there was an error, a warning or a request.
        """
        self._context.close()
        assert self.wrong == []
        others = [url for url in self.requests if not url.startswith(("file:", "http://127.0.0.1:"))]
        assert others == []
