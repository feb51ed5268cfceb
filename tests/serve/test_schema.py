"""The OpenAPI document against the server: whatever it allows or forbids, an answer is one that it describes."""

from __future__ import annotations

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.patience import PATIENCE

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/tokenize",
    "/detokenize",
    "/v1/models",
    "/v1/models/{name}",
    "/health",
    "/ready",
    "/server_info",
    "/speculation",
    "/metrics",
]


@pytest.fixture(scope="module")
def document(shared_server):
    return schemathesis.openapi.from_url(f"{shared_server.url}/openapi.json")


@pytest.mark.parametrize(
    ("path", "mode"),
    [(path, GenerationMode.POSITIVE) for path in PATHS] + [(path, GenerationMode.NEGATIVE) for path in PATHS[:4]],
)
def test_answers_are_as_the_document_says(server, document, path, mode):
    operation = next(iter(document[path].values()))
    statuses = set()
    most = hypothesis.settings().max_examples  # of the profile: a longer one has new examples each time

    @hypothesis.settings(
        max_examples=most // 5,
        deadline=None,
        derandomize=most <= 100,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def exchange(case):
        if isinstance(case.body, dict) and "model" in case.body and mode.is_positive:
            case.body["model"] = "tiny"  # else nearly every request ends at the unknown model
            case.body.pop("timeout_seconds", None)  # too short a time is rightly a 504
        response = case.call(timeout=PATIENCE)
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400:
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}
            assert "Traceback" not in response.text

    exchange()
    assert mode.is_positive or min(statuses) >= 400
