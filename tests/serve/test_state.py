"""What the server says about itself: models, metrics, facts and the live page."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from msgspec.structs import replace

from .fakes import INFO, TEXT, FakeEngine

ASK = {"model": "tiny", "prompt": "abc"}


def metric(text: str, name: str) -> float:
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE).group(1))


def test_models_lists_the_one_model(client):
    (card,) = client.models.list().data
    assert (card.id, card.object, card.max_model_len) == ("tiny", "model", INFO.max_model_len)
    assert client.models.retrieve("tiny").id == "tiny"


def test_metrics_count_requests_tokens_and_times(http):
    before = http.get("/metrics").text
    for status, change in ((200, {}), (400, {"n": 0})):
        assert http.post("/v1/completions", json={**ASK, **change}).status_code == status
    after = http.get("/metrics").text
    assert after.count('overdrive_requests_total{endpoint="/v1/completions",status="200"}') == 1

    def grown(name):
        return metric(after, name) - (metric(before, name) if f"\n{name} " in before else 0)

    assert grown('overdrive_requests_total{endpoint="/v1/completions",status="200"}') == 1
    assert grown('overdrive_requests_total{endpoint="/v1/completions",status="400"}') == 1
    assert grown("overdrive_output_tokens_total") == len(TEXT.encode()) + 1
    assert grown("overdrive_prompt_tokens_total") == 4
    assert grown("overdrive_time_to_first_token_seconds_count") == 1
    assert grown("overdrive_request_seconds_count") == 1


def test_metrics_carry_the_engines_statistics(http):
    text = http.get("/metrics").text
    assert metric(text, "overdrive_running") == 1
    assert metric(text, 'overdrive_drafts_offered_total{key="greedy",position="1",source="ngram"}') == 3
    assert metric(text, 'overdrive_drafts_reached_total{key="greedy",position="1",source="ngram"}') == 2
    assert metric(text, 'overdrive_drafts_accepted_total{key="greedy",position="1",source="ngram"}') == 1
    assert metric(text, 'overdrive_drafts_offered_total{key="sampled",position="0",source="eagle3"}') == 3
    assert metric(text, 'overdrive_draft_rounds_total{key="greedy",source="ngram"}') == 4
    assert metric(text, 'overdrive_draft_tokens_total{key="greedy",source="ngram"}') == 4 + 3
    assert metric(text, 'overdrive_draft_rounds_total{key="greedy",source="eagle3"}') == 0
    assert metric(text, 'overdrive_plans_total{drafts="3"}') == 7
    assert metric(text, 'overdrive_plan_rules_total{rule="gear"}') == 11
    assert metric(text, "overdrive_plan_expected_seconds_total") == 0.5
    assert metric(text, "overdrive_plan_found_seconds_total") == 0.25
    assert metric(text, 'overdrive_acceptance_error{position="1"}') == -0.125
    assert metric(text, 'overdrive_launch_seconds_total{launch="forward"}') == 0


def test_server_info_shows_the_engine_and_its_drafter(http):
    facts = http.get("/server_info").json()
    assert (facts["engine"]["drafter"], facts["engine"]["draft_model"]) == (INFO.drafter, INFO.draft_model)
    assert facts["engine"]["drafts"] == 3
    assert facts["engine"]["kv_tokens"] == 4096
    assert facts["stats"]["plans"] == [5, 0, 0, 7]
    assert facts["model"] == "tiny"


def test_server_info_names_the_model_s_file_without_its_folder(make_server):
    server = make_server(info=replace(INFO, source="/of/this/machine/model.gguf"))
    assert httpx.get(f"{server.url}/server_info").json()["engine"]["source"] == "model.gguf"


def test_server_info_tells_how_drafting_went_by_source_and_key(http):
    facts = http.get("/server_info").json()["drafts"]
    assert facts == {
        "rounds": 20,
        "tokens_per_round": 1.5,
        "sources": {
            "ngram": {
                "greedy": {
                    "rounds": 4,
                    "tokens_per_round": 1.75,
                    "offered": [4, 3],
                    "reached": [4, 2],
                    "accepted": [2, 1],
                    "rate": [0.5, 0.5],
                }
            },
            "eagle3": {
                "sampled": {
                    "rounds": 3,
                    "tokens_per_round": 1.0,
                    "offered": [3, 3],
                    "reached": [3, 0],
                    "accepted": [0, 0],
                    "rate": [0.0, None],
                }
            },
        },
    }


def test_the_documentation_names_every_path_and_field(http):
    """Everything that clients may send or call stands in docs/api.md."""
    text = Path(__file__).parents[2].joinpath("docs", "api.md").read_text()
    document = http.get("/openapi.json").json()
    for path in document["paths"]:
        assert path.replace("{name}", "NAME") in text
    for model in ("ChatRequest", "CompletionRequest", "TokenizeRequest", "DetokenizeRequest", "Speculation"):
        for field in document["components"]["schemas"][model]["properties"]:
            assert re.search(rf"[`\"]{field}\b", text), f"{model}.{field}"


def test_speculation_is_set_by_whom_the_command_line_allows_it(make_server, http):
    """The fake engine was started with `fixed`, and has room for 3 drafts."""
    refused = http.put("/speculation", json={"speculation": "off"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_allowed")
    assert "--speculation-control" in refused.json()["error"]["message"]
    server = make_server(speculation_control=True)
    with httpx.Client(base_url=server.url, timeout=10) as own:
        for setting in ("off", "fixed:3", "fixed"):
            for answer in (own.put("/speculation", json={"speculation": setting}), own.get("/speculation")):
                assert (answer.status_code, answer.json()) == (200, {"speculation": setting})
        for wrong in ("auto", "max:2", "fixed:4", "fast", ""):
            answer = own.put("/speculation", json={"speculation": wrong})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "speculation")
        assert own.put("/speculation", json={}).status_code == 400
        wrong = own.post("/speculation", json={"speculation": "off"})
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, PUT")
    assert server.engine.shifts == ["off", "fixed:3", "fixed"]
    assert http.get("/speculation").status_code == 200


class SlowToTell(FakeEngine):
    """Tells nothing before so many changes have come, and then where they led."""

    MANY = 6

    def shift(self, speculation: str) -> None:
        super().shift(speculation)
        if self.shifted < self.MANY:
            self._news.clear()


def test_changes_that_overtake_each_other_are_all_answered_with_what_holds_in_the_end(make_server):
    server = make_server(engine=SlowToTell(), speculation_control=True)
    asked = [f"fixed:{number % 4}" for number in range(SlowToTell.MANY)]

    def change(setting: str) -> tuple[int, dict]:
        answer = httpx.put(f"{server.url}/speculation", json={"speculation": setting}, timeout=20)
        return answer.status_code, answer.json()

    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(change, asked))
    assert sorted(server.engine.shifts) == sorted(asked)
    assert answers == [(200, {"speculation": server.engine.shifts[-1]})] * len(asked)


class GoneWhenAsked(FakeEngine):
    """Has ended when it is to change."""

    def shift(self, speculation: str) -> None:
        self.server.loop.call_soon_threadsafe(self.server.client.fail, "the engine process ended")


def test_a_change_that_an_engine_does_not_live_to_see_is_refused(make_server):
    engine = GoneWhenAsked()
    engine.server = server = make_server(engine=engine, speculation_control=True)
    answer = httpx.put(f"{server.url}/speculation", json={"speculation": "off"}, timeout=20)
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "the engine process ended")
