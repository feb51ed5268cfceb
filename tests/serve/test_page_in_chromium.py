"""Laws of the live page in a real browser: what a person sees of load, plans and drafts."""

from __future__ import annotations

import msgspec
import pytest

from overdrive.policy.chart import chart
from overdrive.serve.service import Closed

from .chromium import INVISIBLE, NAMELESS, browser
from .fakes import INFO, TEXT
from .pulsing import AUTO, PLANS, PulsingEngine, costs

pytestmark = pytest.mark.browser
DESKTOP, PHONE = (1400, 900), (375, 812)
INKED = "id => document.querySelector(`#${id} canvas`).toDataURL().length"  # what is drawn does not compress to nothing
PLOTS = ("speed", "gears", "rounds", "parts", "load", "cache")
CELLS = """() => [...document.querySelectorAll("#map tbody tr")]
  .map(line => [...line.querySelectorAll("td")].map(cell => cell.textContent))"""


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture
def live(make_server):
    return make_server(engine=PulsingEngine())


@pytest.fixture
def visit(chromium):
    """Opens a page, and afterwards holds it to what every page must keep."""
    opened = []

    def open_page(server, size=DESKTOP, scheme="light", fails=()):
        width, height = size
        page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.set_default_timeout(10_000)
        asked, troubles = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda said: said.type in ("error", "warning") and troubles.append(said.text))
        page.goto(server.url)
        opened.append((page, server, asked, troubles, fails))
        return page

    yield open_page
    fits = [page.evaluate("document.documentElement.scrollWidth <= innerWidth") for page, *_ in opened]
    for page, *_ in opened:
        page.close()
    assert all(fits)
    for _, server, asked, troubles, fails in opened:
        assert {url for url in asked if not url.startswith((server.url, "data:"))} == set()
        assert [text for text in troubles if not any(fail in text for fail in fails)] == []


def reads(page, selector, text):
    """Waits until an element says `text`."""
    page.locator(selector).filter(has_text=text).wait_for()


def ask(page, text="Hello?"):
    page.fill("#text", text)
    page.press("#text", "Enter")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_a_person_sees_the_map_then_traffic_then_drafted_text(live, visit, size, scheme):
    page = visit(live, size, scheme)
    reads(page, "#status", "live")
    page.wait_for_selector("#map tbody td")
    expected = chart(costs(), PLANS, [], [1, 2, 4], [128, 200])
    assert page.evaluate(CELLS) == [[str(choice.drafts) for choice in line] for line in expected]
    reads(page, "#choice", "No step has run yet")
    blank = {name: page.evaluate(INKED, name) for name in PLOTS}
    live.engine.busy = True
    ask(page)
    reads(page, "#choice", "K = 3 for 2 rows")
    reads(page, "#reason", "Next best: K = 2 with 450 a second, 10 % less.")
    reads(page, "#record", "as many tokens and took 10 % longer")
    reads(page, "#tiles", "2.50")
    reads(page, "#accepted", "50 % (50 %)")
    reads(page, "#log .note", "drafted")
    assert page.inner_text("#log .answer") == TEXT
    drafted = page.locator("#log .drafted").all_inner_texts()
    assert 0 < len("".join(drafted)) < len(TEXT)
    page.wait_for_timeout(500)
    assert all(page.evaluate(INKED, name) > blank[name] for name in PLOTS)
    assert page.locator("#map .here").inner_text() == page.evaluate(CELLS)[1][1]
    assert page.evaluate(INVISIBLE) == []
    assert page.evaluate(NAMELESS) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 18, 22)"
    assert dark == (scheme == "dark")


def test_the_map_can_be_read_with_the_keyboard_alone(live, visit):
    page = visit(live)
    page.wait_for_selector("#map tbody td")
    page.focus("#map td[tabindex='0']")
    reads(page, "#map-cell", "1 request at 128 tokens")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    reads(page, "#map-cell", "2 requests at 200 tokens each")
    page.keyboard.press("ArrowDown")  # there is no further one
    reads(page, "#map-cell", "2 requests at 200 tokens each")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"speculation": "fixed:3", "plans": (3,)}, "as at every load"),
        ({"speculation": "off", "drafts": 0, "drafter": "none", "sources": ()}, "K = 0, as at every load"),
        ({"drafter": "none", "drafts": 0, "sources": ()}, "K = 0, as at every load"),
    ],
)
def test_every_setting_has_its_page(make_server, visit, change, words):
    page = visit(make_server(engine=PulsingEngine(msgspec.structs.replace(INFO, **change))))
    reads(page, "#map-cell", words)
    reads(page, "#facts", "no drafts" if not change.get("drafts", 3) else "3 a row")


def test_the_lever_is_there_only_where_clients_may_use_it(make_server, live, visit):
    page = visit(live)
    reads(page, "#choice", "No step has run yet")
    assert not page.locator("#lever").is_visible()
    page = visit(make_server(engine=PulsingEngine(), speculation_control=True), PHONE)
    page.locator("#lever").wait_for()
    assert page.locator("#positions label").all_inner_texts() == ["auto", "off", "K = 1", "K = 2", "K = 3"]
    assert page.evaluate(INVISIBLE) == page.evaluate(NAMELESS) == []


def test_the_lever_decides_for_every_page(make_server, visit):
    """By mouse on one page and by keyboard on the other; each shows what the other did."""
    server = make_server(engine=PulsingEngine(), speculation_control=True)
    one, other = visit(server), visit(server)
    for page in (one, other):
        page.wait_for_selector("#positions input[value=auto]:checked")
    one.locator("#positions").get_by_text("K = 2").click()
    for page in (one, other):
        page.wait_for_selector("#positions input[value='fixed:2']:checked")
    other.focus("#positions input[value='fixed:2']")
    other.keyboard.press("ArrowRight")
    for page in (one, other):
        page.wait_for_selector("#positions input[value='fixed:3']:checked")
    assert server.engine.shifts == ["fixed:2", "fixed:3"]


def test_accepting_by_chance_is_said_plainly(make_server, visit):
    page = visit(make_server(engine=PulsingEngine(msgspec.structs.replace(AUTO, simulated_acceptance="0.7"))))
    reads(page, "#notice", "texts mean nothing")


def test_the_key_is_asked_for_and_stands_in_no_address(make_server, visit):
    server = make_server(engine=PulsingEngine(), api_key=("sesame",))
    page = visit(server, fails=["401"])
    for key in ("wrong", "sesame"):
        page.fill("#key", key)
        page.press("#key", "Enter")
        reads(page, "#refused" if key == "wrong" else "#status", "not the server" if key == "wrong" else "live")
    ask(page)
    reads(page, "#log .note", "drafted")
    assert not page.is_visible("#unlock")
    assert "sesame" not in page.url + page.content()


def test_a_dead_engine_is_said_to_be_dead_and_a_new_one_is_found(live, visit):
    page = visit(live, fails=["503"])
    reads(page, "#status", "live")
    live.loop.call_soon_threadsafe(live.client.fail, "it was killed")
    reads(page, "#notice", "it was killed")
    reads(page, "#status", "failed")
    ask(page)
    reads(page, "#log .note", "it was killed")
    ready, live.gate.state = live.gate.state, Closed("restarting", "it was killed; another is started")
    reads(page, "#status", "restarting")
    reads(page, "#notice", "another is started")
    live.client.failure, live.gate.state = "", ready
    reads(page, "#status", "live")
    assert not page.is_visible("#notice")


def test_a_server_that_has_gone_is_looked_for(live, visit):
    page = visit(live, fails=["ERR_CONNECTION", "ERR_INCOMPLETE"])
    reads(page, "#status", "live")
    live.gate.state = Closed("draining", "the server is shutting down")
    live.close()
    reads(page, "#status", "reconnecting")


def test_a_model_that_loads_is_waited_for(live, visit):
    ready, live.gate.state = live.gate.state, Closed("loading", "the model is loading")
    page = visit(live)
    reads(page, "#facts", "the model is loading")
    live.gate.state = ready
    reads(page, "#status", "live")
    reads(page, "#facts", "tiny")


def test_a_large_machines_map_fits_a_phone(make_server, visit):
    info = msgspec.structs.replace(AUTO, max_rows=250, max_model_len=131_072, kv_tokens=600_000)
    page = visit(make_server(engine=PulsingEngine(info)), PHONE)
    page.wait_for_selector("#map tbody td")
    assert page.locator("#map tbody tr:first-child td").count() == 9
    assert page.locator("#map td.full").count() > 10
    assert page.evaluate("document.querySelector('#map').scrollWidth <= document.querySelector('.scroll').clientWidth")


def test_several_pages_are_open_at_once(live, visit):
    live.engine.busy = True
    for page in [visit(live) for _ in range(3)]:
        reads(page, "#choice", "K = 3 for 2 rows")
