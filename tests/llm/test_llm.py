"""Laws of the LLM class: it is the engine, whatever the options, the batch and the way of reading."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys

import pytest

from overdrive.config import DraftOptions, EngineOptions
from overdrive.errors import BadRequest, OverdriveError
from overdrive.types import SamplingParams

PROMPTS = [
    "Once upon a time",
    "abcabcabcabcabc",
    "def f(x):\n    return x\n\ndef g(x):\n    return",
    "the the the the the",
]
DRAWN = {"max_tokens": 40, "temperature": 0.8, "top_p": 0.95, "seed": 7}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say abcabcabcabcabc."}]


def texts(completions):
    return [completion.text for completion in completions]


def quiet(llm):
    """Whether nothing is left in the engine, pages included."""
    stats = llm._engine.stats()
    return llm._engine.idle and (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"draft": "none"},
        {"drafts": 1},
        {"drafts": 7},
        {"overlap": "on"},
        {"page_size": 4, "chunk": 8},
        {"prefix_cache": False},
        {"max_rows": 1},
    ],
    ids=str,
)
def test_text_does_not_depend_on_options_of_speed(llm, make_llm, options):
    expected = llm.generate(PROMPTS, **DRAWN)
    got = make_llm(**options).generate(PROMPTS, **DRAWN)
    assert texts(got) == texts(expected)
    assert [one.token_ids for one in got] == [one.token_ids for one in expected]


def test_text_does_not_depend_on_the_batch(llm):
    together = llm.generate(PROMPTS * 5, **DRAWN)
    alone = [llm.generate(prompt, **DRAWN)[0] for prompt in PROMPTS]
    assert texts(together) == texts(alone) * 5


def test_text_does_not_depend_on_the_drafts_a_prompt_allows(llm):
    each = [{"max_drafts": drafts} for drafts in (0, 1, 3, 3)]
    assert texts(llm.generate([PROMPTS[1]] * 4, each=each, **DRAWN)) == texts(llm.generate(PROMPTS[1], **DRAWN)) * 4


def test_drafts_are_reported_where_they_were_accepted(llm):
    options = {"max_tokens": 100, "temperature": 0, "ignore_eos": True}
    [drafted] = llm.generate(PROMPTS[1], **options)
    [plain] = llm.generate(PROMPTS[1], max_drafts=0, **options)
    assert drafted.text == plain.text
    assert 0 < drafted.accepted_drafts < 100  # a greedy tiny model soon repeats itself
    assert plain.accepted_drafts == 0
    assert sum(drafted.drafts.sources["ngram"].accepted) == drafted.accepted_drafts
    assert drafted.drafts.rounds + drafted.accepted_drafts - 100 in (0, 1)  # 1 where max_tokens cut the last round
    assert (plain.drafts.rounds, plain.drafts.sources) == (100, {})


def test_tokens_are_those_of_the_engine(llm):
    prompt = llm.tokenizer.encode(PROMPTS[0], add_special=True)
    params = SamplingParams(max_tokens=30, temperature=0.7, seed=3, stop_token_ids=llm.info.eos_ids)
    request = llm._engine.submit("direct", prompt, params)
    while not llm._engine.idle:
        llm._engine.advance()
    [answer] = llm.generate(PROMPTS[0], max_tokens=30, temperature=0.7, seed=3)
    assert list(answer.token_ids) == list(request.output)
    assert answer.prompt_tokens == len(prompt)


def test_prompts_may_be_ids(llm):
    ids = [llm.tokenizer.encode(prompt, add_special=True) for prompt in PROMPTS]
    expected = texts(llm.generate(PROMPTS, **DRAWN))
    assert texts(llm.generate(ids, **DRAWN)) == expected
    assert texts(llm.generate(ids[0], **DRAWN)) == expected[:1]


def test_a_batch_may_be_larger_than_the_engine_looks_at(make_llm):
    llm = make_llm(max_rows=2, max_step_tokens=32)
    answers = llm.generate([f"prompt {number}" for number in range(40)], max_tokens=3, temperature=0, ignore_eos=True)
    assert [len(answer.token_ids) for answer in answers] == [3] * 40
    assert texts(answers[17:18]) == texts(llm.generate("prompt 17", max_tokens=3, temperature=0, ignore_eos=True))


def test_small_steps_hold_fewer_rows_where_their_number_is_left_open(llm, make_llm):
    answers = make_llm(max_rows=0, max_step_tokens=3).generate(PROMPTS, **DRAWN)
    assert texts(answers) == texts(llm.generate(PROMPTS, **DRAWN))


def test_nothing_to_do_is_nothing(llm):
    assert llm.generate([]) == []


def test_each_prompt_may_have_its_own_parameters(llm):
    each = [{"seed": seed, "max_tokens": 5 + seed} for seed in range(3)]
    together = llm.generate([PROMPTS[0]] * 3, each=each, temperature=1.0, ignore_eos=True)
    alone = [llm.generate(PROMPTS[0], temperature=1.0, ignore_eos=True, **own)[0] for own in each]
    assert texts(together) == texts(alone)
    assert [len(one.token_ids) for one in together] == [5, 6, 7]


def test_several_answers_differ_and_the_first_is_that_of_one(llm):
    three = llm.generate(PROMPTS[:2], n=3, **DRAWN)
    assert len(three) == 6
    assert texts([three[0], three[3]]) == texts(llm.generate(PROMPTS[:2], **DRAWN))
    assert len(set(texts(three[:3]))) == 3


def test_without_a_seed_answers_differ(llm):
    assert len(set(texts(llm.generate([PROMPTS[0]] * 3, max_tokens=30, temperature=1.0)))) == 3


def test_a_second_turn_finds_the_first_in_the_cache(llm):
    [first] = llm.generate("A prompt of more than two pages of eight", max_tokens=4, temperature=0)
    [again] = llm.generate("A prompt of more than two pages of eight", max_tokens=4, temperature=0)
    assert again.text == first.text
    assert again.cached_tokens >= 32


@pytest.mark.parametrize("draft", ["ngram", "none"])
def test_a_stop_string_ends_the_text_before_it(make_llm, draft):
    llm = make_llm(draft=draft)
    options = {"max_tokens": 60, "temperature": 0.9, "seed": 11, "ignore_eos": True}
    whole = llm.generate(PROMPTS[0], **options)[0].text
    stop = whole[20:23]
    cut = whole.index(stop)
    [stopped] = llm.generate(PROMPTS[0], stop=stop, **options)
    [kept] = llm.generate(PROMPTS[0], stop=["never there", stop], include_stop_str_in_output=True, **options)
    assert (stopped.text, stopped.finish_reason) == (whole[:cut], "stop")
    assert kept.text == whole[:cut] + stop


def test_a_stop_token_ends_the_answer_and_is_not_shown(llm):
    options = {"max_tokens": 60, "temperature": 0.9, "seed": 11, "ignore_eos": True}
    [whole] = llm.generate(PROMPTS[0], **options)
    stop = whole.token_ids[25]
    [stopped] = llm.generate(PROMPTS[0], stop_token_ids=[stop], **options)
    ids = whole.token_ids[: whole.token_ids.index(stop) + 1]
    assert (stopped.token_ids, stopped.finish_reason) == (ids, "stop")
    assert stopped.text == llm.tokenizer.decode(ids[:-1], continues=True)


def test_max_tokens_is_the_room_left_by_default(make_llm):
    llm = make_llm(max_model_len=64)
    [answer] = llm.generate("x" * 19, ignore_eos=True, temperature=0)
    assert (answer.prompt_tokens, len(answer.token_ids), answer.finish_reason) == (20, 44, "length")


def test_logprobs_cover_every_token_and_drafts_do_not_change_them(llm):
    options = {"max_tokens": 50, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    [drafted] = llm.generate(PROMPTS[1], **options)
    [plain] = llm.generate(PROMPTS[1], max_drafts=0, **options)
    assert [entry.token_id for entry in drafted.logprobs] == list(drafted.token_ids)
    for one, other in zip(drafted.logprobs, plain.logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob)
        assert next(iter(one.top)) == one.token_id and one.rank == 1
        assert len(one.top) == 2
    assert llm.generate(PROMPTS[1], max_tokens=2)[0].logprobs is None


def test_prompt_logprobs_cover_the_prompt_but_its_first_token(llm):
    ids = llm.tokenizer.encode(PROMPTS[2], add_special=True)
    [answer] = llm.generate(ids, max_tokens=2, prompt_logprobs=0)
    assert [entry.token_id for entry in answer.prompt_logprobs] == ids[1:]
    assert all(entry.logprob <= 0 and entry.rank >= 1 for entry in answer.prompt_logprobs)


def test_logit_bias_takes_ids_as_numbers(llm):
    [answer] = llm.generate("x", max_tokens=4, logit_bias={ord("q"): 100})
    assert answer.text == "qqqq"


# -- streams and chats -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_a_stream_is_what_generate_returns(make_llm, overlap):
    llm = make_llm(overlap=overlap)
    pieces = list(llm.stream(PROMPTS[1], **DRAWN))
    assert len(pieces) > 1
    assert "".join(pieces) == llm.generate(PROMPTS[1], **DRAWN)[0].text


def test_a_streamed_chat_is_what_chat_returns(llm):
    [answer] = llm.chat(CHAT, **DRAWN)
    prompt = "system: Be brief.\nuser: Say abcabcabcabcabc.\nassistant: "
    assert answer.text == llm.generate(prompt, add_special_tokens=False, **DRAWN)[0].text
    assert "".join(llm.stream_chat(CHAT, **DRAWN)) == answer.text


def test_many_conversations_are_one_batch(llm):
    conversations = [CHAT, CHAT[1:], [*CHAT, {"role": "assistant", "content": "abc"}, CHAT[1]]]
    alone = [llm.chat(conversation, **DRAWN)[0].text for conversation in conversations]
    assert texts(llm.chat(conversations, **DRAWN)) == alone


def test_streams_and_batches_may_interleave(llm):
    expected = [llm.generate(prompt, **DRAWN)[0].text for prompt in PROMPTS]
    one, other = llm.stream(PROMPTS[0], **DRAWN), llm.stream(PROMPTS[1], **DRAWN)
    read = [next(one), next(other), next(other)]
    batch = texts(llm.generate(PROMPTS[2:], **DRAWN))
    assert read[0] + "".join(one) == expected[0]
    assert read[1] + read[2] + "".join(other) == expected[1]
    assert batch == expected[2:]
    assert quiet(llm)


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_a_stream_that_is_not_read_to_its_end_leaves_nothing_behind(make_llm, overlap):
    llm = make_llm(overlap=overlap)
    stream = llm.stream("Once", max_tokens=200, ignore_eos=True)
    next(stream)
    assert not quiet(llm)
    stream.close()
    for _ in llm.stream("again", max_tokens=200, ignore_eos=True):
        break
    gc.collect()
    llm.generate("x", max_tokens=1)  # whatever was launched has landed
    assert quiet(llm)


def test_an_interrupt_ends_a_batch_and_the_engine_goes_on(make_llm, monkeypatch):
    llm = make_llm()
    advance, turns = llm._engine.advance, []

    def interrupted():
        turns.append(1)
        if len(turns) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return advance()

    monkeypatch.setattr(llm._engine, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, max_tokens=100, ignore_eos=True)
    assert len(turns) == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    expected = texts(llm.generate(PROMPTS, **DRAWN))
    assert quiet(llm)
    assert expected == [llm.generate(prompt, **DRAWN)[0].text for prompt in PROMPTS]


def test_a_failed_device_is_one_clear_error(make_llm, monkeypatch):
    llm = make_llm()

    def fail(*_):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(llm._engine._loop._runner, "forward", fail)
        with pytest.raises(OverdriveError, match="out of memory"):
            llm.generate(PROMPTS, **DRAWN)
    assert len(llm.generate(PROMPTS, **DRAWN)) == len(PROMPTS)


# -- what cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10_000}, "max_tokens"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x" * 1000, "y" * 1000]}, "stop"),
        ({"stop_token_ids": [259]}, "stop_token_ids"),
        ({"logit_bias": {300: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_drafts": -2}, "max_drafts"),
        ({"temprature": 1.0}, "temprature"),
        ({"each": [{}, {}]}, "each"),
        ({"each": [{"top_k": -2}]}, "top_k"),
    ],
    ids=str,
)
def test_a_bad_parameter_is_named_before_anything_runs(llm, parameters, param):
    steps = llm._engine.stats().steps
    with pytest.raises(BadRequest) as refused:
        llm.generate("x", **parameters)
    assert refused.value.param == param
    assert param in str(refused.value)
    assert llm._engine.stats().steps == steps


@pytest.mark.parametrize("prompts", ["y" * 600, [[1, 2, 259]], [[-1]], [[1.5]], [["a", "b"]], [[]], [7.5]], ids=str)
def test_a_bad_prompt_is_named_before_anything_runs(llm, prompts):
    with pytest.raises(BadRequest) as refused:
        llm.generate(prompts, max_tokens=1)
    assert refused.value.param == "prompts"


def test_a_bad_conversation_is_named(llm):
    with pytest.raises(BadRequest, match="role"):
        llm.chat([{"role": "pirate", "content": "Arr"}])
    with pytest.raises(BadRequest) as refused:
        llm.stream_chat(CHAT, n=2)
    assert refused.value.param == "n"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"draughts": 3}, "draughts"),
        ({"drafts": "3"}, "drafts"),
        ({"draft": "eagle"}, "draft"),
        ({"chunk": -1}, "chunk"),
        ({"kv_tokens": 10**12}, "--kv-tokens 1000000000000 needs"),
    ],
    ids=str,
)
def test_a_bad_option_is_named(make_llm, options, name):
    with pytest.raises(OverdriveError, match=name):
        make_llm(**options)


def test_single_options_go_over_whole_ones(make_llm):
    llm = make_llm(options=EngineOptions(draft=DraftOptions(drafts=5, draft="none")), draft="ngram")
    assert (llm.info.drafter, llm.info.drafts) == ("ngram", 5)


def test_a_closed_llm_says_so(make_llm):
    llm = make_llm()
    stream = llm.stream("x", max_tokens=50, ignore_eos=True)
    next(stream)
    llm.close()
    llm.close()
    with pytest.raises(OverdriveError):
        list(stream)
    with pytest.raises(OverdriveError, match="closed"):
        llm.generate("x")


def test_importing_overdrive_loads_no_library():
    loaded = "import overdrive, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    found = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert "overdrive" in found
    assert not {"torch", "numpy", "numba", "fastapi", "pydantic", "rich"} & set(found)
