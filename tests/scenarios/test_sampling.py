"""Sampling rules inside verify windows: token for token as without speculation, whatever was guessed."""

from __future__ import annotations

import pytest

from overdrive.types import SamplingParams
from tests.loop.tiny_engine import VOCAB, next_logits

from .engines import Setting, alone, ask, check_alone, engine, every_setting, request

PROMPT = (11, 4, 4, 30, 4, 4)
FAVOURITE = int(next_logits(PROMPT).argmax())
HOT = {"temperature": 1.4, "seed": 12}
RULES = {
    "presence": {"presence_penalty": 1.5, "temperature": 0.0},
    "absence": {"presence_penalty": -2.0, **HOT},
    "frequency": {"frequency_penalty": 2.0, "temperature": 0.0},
    "familiarity": {"frequency_penalty": -1.0, **HOT},
    "repetition": {"repetition_penalty": 1.8, "temperature": 0.0},
    "invitation": {"repetition_penalty": 0.6, **HOT},
    "all-penalties": {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 1.9, **HOT},
    "forbidden-favourite": {"logit_bias": ((FAVOURITE, -100.0),), "temperature": 0.0},
    "pushed-token": {"logit_bias": ((3, 100.0),), "frequency_penalty": 2.0, "temperature": 0.0},
    "min-p": {"min_p": 0.3, "temperature": 3.0, "seed": 5},
    "top-k": {"top_k": 2, "temperature": 2.0, "seed": 6},
    "top-p": {"top_p": 0.5, "temperature": 2.0, "seed": 7},
}


def with_rule(name: str) -> list[dict]:
    """The rule alone, and with everything that may end an answer early."""
    rule = RULES[name]
    likely = alone(PROMPT, request("r", PROMPT, **rule).params)[0]
    ends = {"min_tokens": 9, "stop_token_ids": (likely[2], likely[6]), "stop": (bytes(likely[4:5]),)}
    return [rule, {**rule, **ends}]


@every_setting
def test_every_rule_is_exact_within_a_verify_window(setting: Setting) -> None:
    """All rules in one batch; the knowing drafter guesses what each rule really lets through."""
    cases = [params for name in RULES for params in with_rule(name)]
    requests = [request(f"r{i}", (*PROMPT, i), i, **params) for i, params in enumerate(cases)]
    texts = [(*one.prompt, *alone(one.prompt, one.params)[0]) for one in requests]
    with engine(setting, texts, max_rows=24, max_step_tokens=256) as bench:
        ask(bench, requests)
    check_alone(bench, requests)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_changes_something(name: str) -> None:
    """Or the law above would hold for an engine that ignores it."""
    rule = RULES[name]
    plain = {key: value for key, value in rule.items() if key in ("temperature", "seed")}
    ruled, free = (alone(PROMPT, request("r", PROMPT, **params).params)[0] for params in (rule, plain))
    assert ruled != free


@every_setting
def test_a_forbidden_token_never_comes_and_a_stop_waits_for_min_tokens(setting: Setting) -> None:
    free = alone(PROMPT, request("r", PROMPT).params)[0]
    forbidden = request("forbidden", PROMPT, logit_bias=((free[3], -100.0),))
    late = request("late", PROMPT, 1, stop_token_ids=tuple(set(free)), min_tokens=6)
    with engine(setting, [PROMPT + free]) as bench:
        ask(bench, [forbidden, late])
    assert free[3] not in bench.answers["forbidden"]
    assert len(bench.answers["late"]) >= 6
    assert not set(bench.answers["late"][:5]) & set(free)


@every_setting
def test_a_greedy_request_beside_hot_ones_equals_its_solo_run(setting: Setting) -> None:
    greedy = request("greedy", PROMPT, 0, max_tokens=40)
    hot = [request(f"hot{i}", PROMPT, 1 + i, max_tokens=30, temperature=2.0, seed=i) for i in range(4)]
    texts = [(*one.prompt, *alone(one.prompt, one.params)[0]) for one in [greedy, *hot]]
    with engine(setting, texts) as bench:
        ask(bench, [greedy, *hot])
    check_alone(bench, [greedy, *hot])
    assert len({tuple(bench.answers[one.id]) for one in hot}) == 4


@every_setting
def test_the_same_seed_gives_the_same_text_and_another_does_not(setting: Setting) -> None:
    requests = [request(f"r{i}", PROMPT, i, temperature=1.5, seed=seed) for i, seed in enumerate((3, 3, 4, 3 + 2**62))]
    texts = [(*one.prompt, *alone(one.prompt, one.params)[0]) for one in requests]
    with engine(setting, texts) as bench:
        ask(bench, requests)
    answers = [tuple(bench.answers[one.id]) for one in requests]
    assert answers[0] == answers[1]
    assert len(set(answers)) == 3


def test_log_probabilities_are_those_of_the_raw_model_under_every_rule() -> None:
    """Penalties and filters choose the token; what is reported is the model's own distribution."""
    requests = [request(f"r{i}", PROMPT, i, logprobs=0, **rule) for i, rule in enumerate(RULES.values())]
    texts = [(*one.prompt, *alone(one.prompt, one.params)[0]) for one in requests]
    with engine(Setting("knowing", 7, True), texts, max_rows=16, max_step_tokens=200) as bench:
        ask(bench, requests)
    for one in requests:
        tokens = list(one.prompt)
        for token, score in zip(bench.answers[one.id], bench.scores[one.id], strict=True):
            assert score == pytest.approx(float(next_logits(tokens).log_softmax(1)[0, token]), abs=1e-5)
            tokens.append(token)


def test_the_oracle_itself_draws_from_all_tokens() -> None:
    """Twenty seeds, twenty texts: the noise depends on the seed."""
    drawn = {alone(PROMPT, SamplingParams(max_tokens=8, temperature=1.0, seed=seed))[0] for seed in range(20)}
    assert len(drawn) == 20
    assert len({token for text in drawn for token in text}) > VOCAB // 3
