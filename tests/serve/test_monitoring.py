"""Laws of what is measured: dashboard and alerts ask for what exists, and what is told is what happened."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from overdrive.serve.service import Closed
from overdrive.types import FinishReason
from overdrive.wire import Stats, Tokens

from .test_state import metric

FOLDER = Path(__file__).parents[2] / "monitoring"
ASK = {"model": "tiny", "prompt": "abc"}
NAME = re.compile(r"overdrive_\w+")


def exposed(text: str) -> set[str]:
    """Every name that a query may use."""
    return set(re.findall(r"^(overdrive_\w+?)(?:\{.*)? \S+$", text, re.MULTILINE))


def families(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))


@pytest.fixture
def told(http):
    assert http.post("/v1/completions", json=ASK).status_code == 200
    return http.get("/metrics").text


def dashboard() -> dict[str, Any]:
    return json.loads((FOLDER / "grafana.json").read_text())


def alerts() -> list[str]:
    return re.findall(r"^ +expr: (.*)$", (FOLDER / "alerts.yml").read_text(), re.MULTILINE)


def asked() -> list[str]:
    board = dashboard()
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    queries += [variable["query"]["query"] for variable in board["templating"]["list"][1:]]
    return queries + alerts()


def test_dashboard_and_alerts_ask_for_what_is_there(told):
    queries = asked()
    assert len(queries) > 30
    assert {name for query in queries for name in NAME.findall(query)} <= exposed(told) | {"overdrive_plan_rules_total"}
    for query in queries:
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}"), query


def test_labels_of_queries_are_labels_of_metrics(told):
    for query in asked():
        for name, matchers in re.findall(r"(overdrive_\w+)\{([^}]*)\}", query):
            for label in re.findall(r"(\w+)=", matchers):
                line = next(line for line in told.splitlines() if line.startswith(name) and line[len(name)] in "{ ")
                assert label == "instance" or f'{label}="' in line, query


def test_labels_that_queries_sum_by_are_labels_of_metrics(told):
    """Those of a query's sums and of the words of its legend."""
    targets = [target for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    legends = {target["expr"]: target.get("legendFormat", "") for target in targets}
    for query in asked():
        by = {label for part in re.findall(r"by \(([^)]*)\)", query) for label in re.split(r",\s*", part)}
        assert set(re.findall(r"{{\s*(\w+)\s*}}", legends.get(query, ""))) <= by, query
        for name, label in ((name, label) for name in NAME.findall(query) for label in by - {"instance"}):
            lines = [line for line in told.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
            assert any(f'{label}="' in line for line in lines), query


def test_queries_are_promql():
    promql = pytest.importorskip("promql_parser")
    queries = [query for query in asked() if not query.startswith("label_values(")]  # which is Grafana's own
    for query in queries:
        promql.parse(query.replace("$__rate_interval", "5m").replace("$instance", ".*"))


def test_the_dashboard_has_what_an_import_needs():
    board = dashboard()
    assert board["schemaVersion"] >= 36 and board["title"] and re.fullmatch(r"[\w-]{1,40}", board["uid"])
    assert board.get("id") is None  # Grafana gives it one
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    source, instance = board["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    asking = [panel for panel in panels if panel["type"] != "row"]
    wanted = {"type": "prometheus", "uid": f"${{{source['name']}}}"}
    assert all(one["datasource"] == wanted for one in [*asking, instance])
    for panel in asking:
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names) > 0 and panel["title"]
    known = {source["name"], instance["name"], "__rate_interval"}
    assert {name for query in asked() for name in re.findall(r"\$(\w+)", query)} <= known


def test_panels_lie_side_by_side():
    places = [panel["gridPos"] for panel in dashboard()["panels"]]
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= 24 and at["h"] > 0 < at["w"] and at["y"] >= 0 for at in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_every_metric_is_described(told):
    docs = Path(__file__).parents[2] / "docs"
    text = "".join(docs.joinpath(page).read_text() for page in ("api.md", "operations.md"))
    assert {name for name in families(told) if not name.endswith("_created")} <= set(NAME.findall(text))


def test_answers_are_counted_by_why_they_ended(http, server):
    before = http.get("/metrics").text
    endings = {
        "stop": lambda submit: iter([Tokens(submit.id, [97], finish=FinishReason.STOP)]),
        "length": lambda submit: iter([Tokens(submit.id, [97], finish=FinishReason.LENGTH)]),
        "error": lambda submit: iter([Tokens(submit.id, finish=FinishReason.ERROR, error="no")]),
        "shutdown": lambda submit: iter([Tokens(submit.id, finish=FinishReason.ABORT)]),
        "timeout": lambda submit: iter([Tokens(submit.id, finish=FinishReason.ERROR, status=504)]),
    }
    for script in endings.values():
        server.engine.script = script
        http.post("/v1/completions", json={**ASK, "n": 2})
    after = http.get("/metrics").text
    for word in endings:
        name = f'overdrive_answers_total{{finish="{word}"}}'
        assert metric(after, name) - metric(before, name) == 2, word


def test_the_time_in_the_queue_is_the_engines_word(http, server):
    before = http.get("/metrics").text
    http.post("/v1/completions", json=ASK)
    after = http.get("/metrics").text
    name = "overdrive_queue_seconds_sum"
    assert metric(after, name) - metric(before, name) == pytest.approx(0.25)


def test_a_new_engine_takes_the_place_of_a_dead_ones_numbers(make_server):
    server = make_server()
    server.gate.metrics.watch(lambda: Stats(steps=7))
    text = server.gate.report().decode()
    assert re.findall(r"^overdrive_steps_total (\S+)$", text, re.MULTILINE) == ["7.0"]


def test_ready_is_a_number_too(make_server):
    server = make_server()
    assert metric(server.gate.report().decode(), "overdrive_ready") == 1
    server.gate.state = Closed("draining", "the server is shutting down")
    assert metric(server.gate.report().decode(), "overdrive_ready") == 0
