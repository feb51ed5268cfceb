"""Laws of the live page without a browser: the one file, and what open pages are told."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import re
from collections import Counter
from itertools import islice
from pathlib import Path

import httpx
import msgspec
import pytest

from overdrive.config import ServerOptions
from overdrive.policy.chart import chart
from overdrive.serve.metrics import Metrics
from overdrive.serve.page import assembly
from overdrive.serve.page.live import follow
from overdrive.serve.page.pulse import pulse
from overdrive.serve.service import Closed, Gate, Service
from overdrive.text import ByteTokenizer, ChatTemplate
from overdrive.tools.style import chat_style
from overdrive.wire import Stats
from tests.patience import PATIENCE, wait_until

from .fakes import INFO, TEMPLATE
from .pulsing import AUTO, PLANS, PulsingEngine, costs, events

FOLDER = Path(assembly.__file__).parent


@pytest.fixture
def live(make_server):
    return make_server(engine=PulsingEngine())


class Idle:
    """A link's end in whose engine nothing happens."""

    failure, active, stats = "", 0, Stats()

    async def next_stats(self) -> Stats:
        await asyncio.Event().wait()


def gate(state: Service | Closed) -> Gate:
    return Gate(ServerOptions(), Metrics(), state)


def service(client: Idle, info=INFO) -> Service:
    tokenizer, template = ByteTokenizer(), ChatTemplate({"default": TEMPLATE}, {}, "test")
    return Service(client, info, tokenizer, template, chat_style(template, tokenizer), "tiny", 9.0)


def told(state: Service | Closed) -> list[tuple[str, dict]]:
    """Every event until the stream ends by itself."""

    async def read() -> list[bytes]:
        return [event async for event in follow(gate(state))]

    parts = [event.decode().split("\n") for event in asyncio.run(asyncio.wait_for(read(), PATIENCE))]
    pairs = [(part[0], part[1]) for part in parts if part[0].startswith("event: ")]
    return [(name.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))) for name, data in pairs]


def test_the_page_is_one_file_that_asks_for_nothing_else(http):
    page = http.get("/").text
    links = re.findall(r"""(?:src|href)=["']([^"']+)|url\(([^)]+)""", page)
    assert {next(filter(None, link)) for link in links} == {"data:,", "#chat", "metrics", "openapi.json"}
    asked = re.findall(r"""(?:fetch|follow)\(["']([^"']+)""", page)
    assert set(asked) == {"live", "speculation", "v1/chat/completions"}
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"https://github.com/leeoniya/uPlot"}  # its notice, no more


def test_a_browser_runs_only_what_the_page_was_built_with(http):
    response = http.get("/")
    policy = response.headers["content-security-policy"]
    for tag in ("script", "style"):
        parts = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", response.text, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts]
        assert len(parts) == 2
        assert f"{tag}-src " + " ".join(f"'sha256-{one}'" for one in hashes) in policy
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"\sstyle=|\son[a-z]+=", (FOLDER / "page.html").read_text())
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"


def test_every_module_is_in_the_page_once_and_no_two_share_a_name():
    names = assembly.modules("main.js")
    assert sorted(names) == sorted(path.name for path in FOLDER.glob("*.js"))
    text = "\n".join((FOLDER / name).read_text() for name in names)
    declared = re.findall(r"^(?:export )?(?:async )?(?:const|let|function\*?|class) (\w+)", text, re.MULTILINE)
    assert Counter(declared).most_common(1)[0][1] == 1
    script = assembly.assemble()[0].decode().rpartition('<script type="module">')[2]
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)


def test_the_vendored_library_comes_with_its_licence():
    licence = (FOLDER / "vendor" / "LICENSE.uPlot").read_text()
    assert "MIT License" in licence
    assert licence.strip() in assembly.assemble()[0].decode()
    assert "uPlot" in Path(__file__).parents[2].joinpath("NOTICE").read_text()


def test_a_page_is_told_all_it_shows_before_any_traffic(live):
    (first, facts), (second, now), (third, drawn) = islice(events(live.url), 3)
    assert (first, second, third) == ("hello", "pulse", "map")
    assert (facts["model"], facts["drafter"], facts["plans"], facts["costs"]) == (
        "tiny",
        INFO.drafter,
        [1, 2, 3],
        "measured",
    )
    assert (now["steps"], now["plan"]["rule"]) == (0, "")
    assert (drawn["weighed"], drawn["learnt"]) == (True, False)


def test_the_map_is_what_the_policy_says(live):
    drawn = next(value for name, value in events(live.url) if name == "map")
    assert (drawn["rows"], drawn["contexts"]) == ([1, 2, 4], [128, 200])
    expected = chart(costs(), PLANS, [], drawn["rows"], drawn["contexts"])
    assert drawn["cells"] == msgspec.to_builtins(expected)
    assert len({cell["drafts"] for line in drawn["cells"] for cell in line}) > 1


def test_the_map_follows_what_is_learnt(live):
    live.engine.busy = True
    drawn = next(value for name, value in events(live.url) if name == "map" and value["learnt"])
    expected = chart(costs(), PLANS, [0.9, 0.5, 0.1], drawn["rows"], drawn["contexts"])
    assert drawn["cells"] == msgspec.to_builtins(expected)


def test_loads_that_the_kv_cache_cannot_hold_are_left_out(make_server):
    info = msgspec.structs.replace(AUTO, kv_tokens=300)
    drawn = next(value for name, value in events(make_server(engine=PulsingEngine(info)).url) if name == "map")
    assert [[cell is not None for cell in line] for line in drawn["cells"]] == [
        [True, True, False],
        [True, False, False],
    ]


@pytest.mark.parametrize(("speculation", "drafts"), [("fixed", 3), ("off", 0)])
def test_where_nothing_is_weighed_the_map_is_the_same_everywhere(make_server, speculation, drafts):
    info = msgspec.structs.replace(INFO, speculation=speculation, drafts=drafts)
    drawn = next(value for name, value in events(make_server(engine=PulsingEngine(info)).url) if name == "map")
    assert not drawn["weighed"]
    assert {cell["drafts"] for line in drawn["cells"] for cell in line} == {drafts}


def test_pulses_are_what_happened_since_the_one_before(live):
    live.engine.busy = True
    pulses = [value for name, value in islice(events(live.url), 12) if name == "pulse" and value["seconds"]]
    for one in pulses:
        beats = round(one["seconds"] / 0.5)
        assert (one["steps"], one["generated"], one["plans"]) == (20 * beats, 100 * beats, [0, 0, 0, 20 * beats])
        (drafted,) = one["drafts"]
        assert (drafted["source"], drafted["accepted"]) == ("eagle3", [40 * beats, 20 * beats, 0])
        assert one["launch_seconds"][1] == pytest.approx(0.007 * 20 * beats)
        assert (one["plan"]["tokens"], one["plan"]["seconds"]) == (pytest.approx(1), pytest.approx(1.1))


def test_several_pages_are_told_the_same(live):
    live.engine.busy = True
    streams = [events(live.url) for _ in range(3)]
    sums = []
    for stream in streams:
        sums.append(Counter())
        for name, value in islice(stream, 8):
            if name == "pulse":
                sums[-1].update({key: value[key] for key in ("steps", "generated", "seconds")})
    assert all(one["generated"] == 5 * one["steps"] == 200 * one["seconds"] > 0 for one in sums)


def test_differences_of_statistics_with_more_plans_than_before():
    old, new = Stats(plans=[3]), Stats(plans=[5, 0, 2], clock=1.0)
    assert pulse(new, old).plans == [2, 0, 2]
    assert pulse(new, new).plans == [0, 0, 0]
    assert pulse(new, old).plan.tokens == 0.0


def test_nothing_runs_for_pages_that_have_gone(live):
    async def tasks() -> int:
        return len(asyncio.all_tasks())

    def count() -> int:
        return asyncio.run_coroutine_threadsafe(tasks(), live.loop).result(PATIENCE)

    before = count()
    stream = events(live.url)
    next(stream)
    assert count() > before
    stream.close()
    wait_until(lambda: count() <= before)


@pytest.mark.parametrize("status", ["loading", "draining", "restarting"])
def test_a_page_is_told_why_there_is_no_engine_and_comes_back_later(status):
    assert told(Closed(status, "the reason")) == [("status", {"status": status, "reason": "the reason"})]


def test_a_page_is_told_that_the_engine_is_gone():
    client = Idle()
    client.failure = "the engine process ended (killed)"
    (first, _), last = told(service(client))
    assert (first, last) == ("hello", ("status", {"status": "failed", "reason": client.failure}))


def test_an_engine_that_ends_under_a_page_is_said_to_be_gone(live):
    stream = events(live.url)
    next(stream)
    live.loop.call_soon_threadsafe(live.client.fail, "it is dead")
    assert list(stream)[-1] == ("status", {"status": "failed", "reason": "it is dead"})


def test_a_page_of_an_engine_that_another_followed_is_told_to_come_again(live):
    stream = events(live.url)
    next(stream)
    old, live.gate.state = live.gate.state, Closed("restarting", "it is dead")
    assert list(stream)[-1] == ("status", {"status": "restarting", "reason": "it is dead"})
    live.gate.state = old
    stream = events(live.url)
    next(stream)
    live.gate.state = dataclasses.replace(old)  # another service
    assert {name for name, _ in stream} <= {"hello", "pulse", "map"}


def test_an_open_page_keeps_no_server_from_going_down(live):
    stream = events(live.url)
    next(stream)
    live.gate.state = Closed("draining", "the server is shutting down")
    names = [name for name, _ in stream]
    assert names[-1] == "status"


def test_the_page_is_open_and_what_it_is_told_needs_the_key(make_server):
    url = make_server(engine=PulsingEngine(), api_key=("sesame",)).url
    assert httpx.get(url).status_code == 200
    assert httpx.get(f"{url}/live").status_code == 401
    assert httpx.get(f"{url}/live?key=sesame").status_code == 401
    assert next(events(url, {"Authorization": "Bearer sesame"}))[0] == "hello"
