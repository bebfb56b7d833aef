"""The page in a real browser: it shows what happens within two seconds, and goes on after failures.

The tests are skipped without Chromium or Playwright. One cluster of two nodes is for all of them.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

import pytest
from harness import environment, free_port, s4

sync_api = pytest.importorskip("playwright.sync_api", reason="SKIPPED: install playwright")

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

CHROMIUM = which("chromium") or which("chromium-browser") or ""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="SKIPPED: install the package chromium"),
]

ODD = "<script>document.title = 'odd'</script>"
APP = f"""\
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
    page: str = ""
class Count(ProcessingElement):
    clicks: int = 0
    def on_event(self, click: Click):
        if click.page:
            raise ValueError("{ODD}")
        self.clicks += 1
        self.seen.put(click)
class Last(ProcessingElement):
    page: str = ""
    def on_event(self, click: Click):
        self.page = click.page
        self.out.put(click)
class Clicks(App):
    def on_init(self):
        count = self.create_pe(Count)
        last = self.create_pe(Last)
        last.out = self.create_output_stream("out")
        count.seen = self.create_stream("seen", last, key="user")
        self.create_input_stream("clicks", count, key="user")
app = Clicks("counter")
"""
SETTINGS = (
    "s4.stream.clicks.grade=durable",
    "s4.stream.clicks.onError=skip",
    "s4.container.restartDelay=50",
    "s4.http.address=tcp://127.0.0.1:{http}",
    "s4.listener.address=tcp://127.0.0.1:{port}",
)
LONG_MS = 60_000
AXE = "https://registry.npmjs.org/axe-core/-/axe-core-4.10.3.tgz"


class Nodes:
    """Two nodes of a cluster, which serve HTTP; ``one`` and ``two`` are their ports of HTTP."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = {name: (free_port(), free_port()) for name in ("one", "two")}
        (folder / "counter.py").write_text(APP)
        for name in self._ports:
            self.start(name)
        self.run("deploy", "counter.py", "--partitions", "4", "--folder", str(folder / "cluster"))

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._ports[name][1]}/"

    def start(self, name: str) -> None:
        port, http = self._ports[name]
        given = [word for each in SETTINGS for word in ("-p", each.format(port=port, http=http))]
        place = ("--name", name, "--folder", str(self.folder / "cluster"), "--json")
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                s4("node", "default", *place, *given),
                cwd=self.folder,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._stack.callback(self._end, process)
        assert process.stdout is not None
        assert process.stdout.readline(), (self.folder / f"{name}.log").read_text()
        self._processes[name] = process

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            s4(*arguments), cwd=self.folder, env=environment(), capture_output=True, timeout=60
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def send(self, *clicks: dict[str, str], name: str = "one") -> None:
        lines = "\n".join(map(json.dumps, clicks))
        request = urllib.request.Request(
            f"{self.url(name)}streams/clicks",
            lines.encode(),
            {"Content-Type": "application/x-ndjson"},
        )
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30):
                    return
            except urllib.error.HTTPError as error:
                if error.code == 422:  # the app has refused an event
                    return
                if error.code not in (429, 503, 504):  # else not yet
                    raise

    def status(self, name: str = "one") -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url(name)}status", timeout=30) as answer:
            (snapshot,) = json.load(answer)
        return dict(snapshot)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        process.stdout.close()
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(tmp_path_factory.mktemp("page"), stack)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield found
        found.close()


@contextmanager
def opened(
    browser: Browser, url: str, width: int = 1024, scheme: str = "light", *, missing: bool = False
) -> Iterator[Page]:
    """The page, with a count of its own: an error of it fails the test. That the node lacks what
    the page asks for is one unless it is ``missing`` on purpose: the browser says it itself."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(LONG_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda message: (
            message.type == "error"
            and "ERR_CONNECTION"
            not in message.text  # of a node that is away, as the browser says it
            and not (missing and "404" in message.text)
            and errors.append(message.text)
        ),
    )
    page.goto(url)
    page.locator("#live.good").wait_for()
    yield page
    assert errors == []
    context.close()


SEEN = """since => new Promise(done => {
  const look = () => {
    const rows = [...document.querySelectorAll('#pes tr')];
    if (!rows.some(row => row.textContent.includes(since.text))) setTimeout(look, 20);
    else done(performance.now() - since.began);
  };
  look();
})"""


def test_a_sent_event_is_seen_within_two_seconds_and_its_key_has_its_state(
    browser: Browser, nodes: Nodes
) -> None:
    nodes.send({"user": "before"})
    with opened(browser, nodes.url("two")) as page:
        page.locator("#pes tr", has_text="Count").first.wait_for()
        began = page.evaluate("performance.now()")
        user = f"joe {began}"
        nodes.send(*[{"user": user}] * 50)
        milliseconds = page.evaluate(SEEN, {"text": user, "began": began})
        assert milliseconds < 2000
        row = page.locator("#pes tr", has_text="Count")
        row.get_by_role("button", name=user).click()
        page.locator("#state", has_text="clicks").wait_for()
        shown = page.locator("#state").inner_text()
        assert "50" in shown.splitlines()
        assert re.search(r"in partition \d+ on node (one|two)", shown)


def test_names_and_reasons_are_text_whatever_they_contain(browser: Browser, nodes: Nodes) -> None:
    for _ in range(8):  # keys are counted in a sample of slices
        nodes.send({"user": ODD})
    nodes.send({"user": ODD}, {"user": "ann", "page": "/"})
    with opened(browser, nodes.url("one")) as page:
        page.locator("#dead td", has_text=ODD).first.wait_for()
        page.locator("#pes button", has_text="<script>").first.wait_for()
        assert page.title() == "default · s4node"
        assert page.locator("main script, nav script").count() == 0
        page.locator("#key input[name=key]").fill(ODD)
        page.locator("#key select").select_option("Count")
        page.locator("#key button").press("Enter")
        page.locator("#state", has_text="clicks").wait_for()
        assert ODD in page.locator("#state").inner_text()
        assert page.title() == "default · s4node"


def test_the_page_of_a_node_shows_all_nodes_and_the_graph(browser: Browser, nodes: Nodes) -> None:
    with opened(browser, nodes.url("two")) as page:
        for name in ("one", "two"):
            page.locator("#partitions h3", has_text=name).wait_for()
        assert page.locator("#partitions li").count() == 4
        graph = page.locator("#graph svg")
        for name in ("clicks", "Count", "seen", "Last", "out"):
            graph.locator("text", has_text=name).first.wait_for()
        page.locator("#why h2", has_text="counter").wait_for()


def test_a_key_that_is_not_saved_has_its_owner_shown(browser: Browser, nodes: Nodes) -> None:
    with opened(browser, nodes.url("one"), missing=True) as page:
        page.locator("#pes tr").first.wait_for()
        page.locator("#key input[name=key]").fill("nobody")
        page.locator("#key button").press("Enter")
        page.locator("#state", has_text="nothing is saved of this key").wait_for()
        shown = page.locator("#state").inner_text()
        assert re.search(r"of partition \d+, which is on node '(one|two)'", shown)


def test_a_node_that_wants_a_token_gets_it_from_the_page(browser: Browser, nodes: Nodes) -> None:
    def guard(route: Route) -> None:
        if route.request.headers.get("authorization") == "Bearer secret":
            route.continue_()
        else:
            route.fulfill(status=401, body="this needs a token")

    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(LONG_MS)
    for path in ("status", "why"):
        page.route(f"**/{path}", guard)
    page.goto(nodes.url("one"))
    page.locator("#token input").fill("secret")
    assert page.locator("main").is_hidden()
    page.keyboard.press("Enter")
    page.locator("#why h2", has_text="counter").wait_for()
    assert page.locator("#token").is_hidden()
    assert page.url == nodes.url("one")
    context.close()


def test_all_can_be_reached_with_the_keyboard(browser: Browser, nodes: Nodes) -> None:
    with opened(browser, nodes.url("one")) as page:
        page.locator("#pes button").first.wait_for()
        reached: set[str] = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate("document.activeElement.closest('section, form')?.textContent ?? ''")
            )
            place = page.evaluate("document.activeElement.outerHTML.slice(0, 40)")
            if place.startswith("<body"):
                break
        assert any("Partitions" not in text and "calls" in text for text in reached)
        assert any("Key" in text for text in reached)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1024, 1920])
def test_the_page_fits_and_axe_finds_nothing_serious(
    browser: Browser, nodes: Nodes, axe: str, width: int, scheme: str
) -> None:
    with opened(browser, nodes.url("one"), width, scheme) as page:
        page.locator("#pes tr").first.wait_for()
        page.locator("#chart canvas").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        graph = page.locator("#graph .scroll")
        assert graph.evaluate("graph => graph.scrollWidth <= graph.clientWidth")
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=f"{folder}/page-{width}-{scheme}.png", full_page=True)
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [
            (each["id"], [node["html"][:200] for node in each["nodes"]])
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == []


def test_the_page_goes_on_after_a_container_begins_anew_and_after_a_failover(
    browser: Browser, nodes: Nodes
) -> None:
    with opened(browser, nodes.url("one")) as page:
        (container,) = nodes.status()["nodes"][0]["containers"]
        os.kill(container["pid"], signal.SIGKILL)
        page.locator("#history tr", has_text="SIGKILL").first.wait_for()

        nodes.kill("two")
        page.locator("#partitions .away", has_text="two").wait_for()
        page.locator("#history .failover").first.wait_for()
        page.locator("#partitions .node:not(.away) li").nth(3).wait_for()
        nodes.send({"user": "after"})
        page.locator("#live.good").wait_for()


def test_the_page_goes_on_after_its_node_was_away(browser: Browser, nodes: Nodes) -> None:
    with opened(browser, nodes.url("one")) as page:
        nodes.kill("one")
        page.locator("#live.bad").wait_for()
        nodes.start("one")
        page.locator("#live.good").wait_for()
        page.locator("#partitions li").nth(3).wait_for()


# -- set-up ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, which is fetched once."""
    kept = Path(tempfile.gettempdir()) / f"s4node-axe-{os.getuid()}.js"
    if not kept.exists():
        try:
            with urllib.request.urlopen(AXE, timeout=60) as answer:
                data = answer.read()
        except OSError as error:
            pytest.skip(f"SKIPPED: axe-core cannot be fetched: {error}")
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            kept.write_bytes(member.read())
    return kept.read_text(encoding="utf-8")
