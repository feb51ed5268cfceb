"""Laws of the recipe, with a scripted target: what is asked how often, what is kept apart, what counts as answered."""

from __future__ import annotations

import json

import pytest

from overdrive.errors import OverdriveError
from overdrive.train.generate.answers import answer
from overdrive.train.generate.exclusion import Exclusions
from overdrive.train.generate.recipe import Budget, Recipe
from tests.train_generate.scripted import CHATML, Collected, ScriptedGenerator, prompt, scripted_turns

PLAIN = {"written_share": 0.0, "passage_share": 0.0, "next_turn": 0.0, "short_share": 0.0, "heldout_share": 0.0}
LONG = " ".join(f"word{n}" for n in range(110))


def make(tmp_path, prompts, script=lambda job, text: "yes", budget=Budget(), exclusions=(), **fields):
    tmp_path.mkdir(exist_ok=True)
    generator, rows = ScriptedGenerator(script), Collected()
    recipe = Recipe(**(PLAIN | fields))
    texts = Exclusions(exclusions)
    tally = answer(generator, scripted_turns(), prompts, rows, tmp_path, recipe, budget, texts, quiet=True)
    return generator.jobs, rows.rows, tally


def test_every_prompt_is_answered_greedily_once_and_sampled_as_often_as_asked(tmp_path):
    prompts = [prompt(n, f"question {n}") for n in range(6)]
    jobs, rows, _ = make(tmp_path, prompts, samples=3, temperature=(0.5, 0.9), top_p=(0.8, 0.9))
    assert sorted(line for *_, line in rows) == sorted(list(range(6)) * 4)
    assert sum(job.temperature == 0 for job in jobs) == 6
    assert all(0.5 <= job.temperature <= 0.9 and 0.8 <= job.top_p <= 0.9 for job in jobs if job.temperature)
    greedy = [bytes(job.prompt[6:16]).decode() for job in jobs if not job.temperature]
    assert sorted(greedy) == sorted(f"question {n}" for n in range(6))


def test_only_the_targets_answers_are_marked_and_their_end_with_them(tmp_path):
    _, rows, _ = make(tmp_path, [prompt(0, "hello?", later_turns=("and then?",))], samples=0)
    [(text, said, split, _, line)] = rows
    assert text == "[user]hello?<eos>[assistant]yes<eos>[user]and then?<eos>[assistant]yes<eos>"
    assert (said, split, line) == ("yes<eos>yes<eos>", "train", 0)


def test_held_out_prompts_are_answered_greedily_once_and_nothing_else_is_made_of_them(tmp_path):
    prompts = [prompt(n, f"{LONG} question {n}", category=f"kind {n % 2}") for n in range(60)]
    fields = {"heldout_share": 0.3, "passage_share": 0.5, "next_turn": 1.0, "prompt_tokens": 1000}
    jobs, rows, _ = make(tmp_path, prompts, **fields)
    heldout = [row for row in rows if row[2] == "heldout"]
    lines = {row[4] for row in heldout}
    assert 5 < len(lines) == len(heldout) < 40
    assert all(said == "yes<eos>" and category == f"kind {line % 2}" for _, said, _, category, line in heldout)
    ends = tuple(f"question {line}[assistant]".encode() for line in lines)
    measured = [job for job in jobs if bytes(token for token in job.prompt if token < 256).endswith(ends)]
    assert len(measured) == len(lines) and not any(job.temperature for job in measured)
    trained = " ".join(row[0] for row in rows if row[2] == "train")
    assert any(row[3] == "passage" for row in rows)
    assert not any(f"question {line}<" in trained or f"question {line}\n" in trained for line in lines)
    again = make(tmp_path / "again", prompts[:30], **fields)[1]
    assert {row[4] for row in again if row[2] == "heldout"} == {line for line in lines if line < 30}


def test_the_target_writes_prompts_and_they_are_answered_but_never_marked(tmp_path):
    def script(job, text):
        return f"own {job.key}?" if text == "[user]" else "sure"

    _, rows, tally = make(tmp_path, [prompt(n, f"q{n}") for n in range(40)], script, written_share=0.5)
    written = [row for row in rows if row[3] == "written"]
    assert 20 < len(written) < 250 and all(row[4] == -1 and row[1] == "sure<eos>" for row in written)
    assert all(row[0].startswith("[user]own ") for row in written)
    assert len({row[0] for row in written}) == len(written)
    assert tally.rows["train", "the target itself", ""] == len(written)


def test_written_prompts_that_are_empty_endless_twice_or_excluded_are_dropped(tmp_path):
    secret = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    said = iter(["", "x" * 900, "fine", "Fine ", f"please: {secret.upper()} now", "good"] + ["fine"] * 900)
    _, rows, tally = make(
        tmp_path,
        [prompt(n, f"q{n}") for n in range(30)],
        lambda job, text: next(said) if text == "[user]" else "ok",
        written_share=0.4,
        exclusions=[f"zero {secret}"],
    )
    assert {row[0] for row in rows if row[3] == "written"} == {
        "[user]fine<eos>[assistant]ok<eos>",
        "[user]good<eos>[assistant]ok<eos>",
    }
    assert tally.dropped["written turn empty or too long"] == 2
    assert tally.dropped["written turn excluded"] == 1 and tally.dropped["written turn there twice"] > 1


def test_conversations_go_on_as_long_as_the_recipe_says_and_end_where_words_are_unfit(tmp_path):
    def script(job, text):
        return "more?" if text.endswith("[user]") else "well"

    _, rows, tally = make(tmp_path, [prompt(0, "hi")], script, samples=0, next_turn=1.0, max_turns=3)
    assert rows[0][0] == "[user]hi<eos>[assistant]well<eos>" + "[user]more?<eos>[assistant]well<eos>" * 2
    assert rows[0][1] == "well<eos>" * 3 and tally.turns == {3: 1}
    fields = {"samples": 0, "next_turn": 1.0, "max_turns": 3}
    _, rows, _ = make(tmp_path / "again", [prompt(0, "hi")], script, exclusions=["More!"], **fields)
    assert rows[0][0] == "[user]hi<eos>[assistant]well<eos>"


def test_an_answer_that_was_cut_ends_its_conversation(tmp_path):
    _, rows, _ = make(tmp_path, [prompt(0, "hi")], lambda *_: "x" * 99, samples=0, next_turn=1.0, answer_tokens=20)
    assert rows[0][1] == "x" * 20


def test_passage_tasks_stand_on_prompts_and_on_answers_with_their_licences(tmp_path):
    prompts = [
        prompt(0, f"{LONG} why?", source="tales", license="CC0-1.0"),
        *(prompt(n, f"q{n}") for n in range(1, 30)),
    ]
    spoken = " ".join(f"said{n}" for n in range(110))
    budget = Budget(tokens=40_000)
    _, rows, tally = make(tmp_path, prompts, lambda *_: spoken[:500], budget, passage_share=0.5, prompt_tokens=900)
    tasks = [row for row in rows if row[3] == "passage"]
    assert tasks and all("word50" in row[0] or "said50" in row[0] for row in tasks)
    assert tally.rows["train", "passages of tales", "CC0-1.0"] > 0 and tally.passages[0] > 3


def test_a_budget_goes_round_again_with_samples_and_stops(tmp_path):
    jobs, rows, tally = make(tmp_path, [prompt(n, f"q{n}") for n in range(5)], budget=Budget(tokens=400), samples=1)
    assert 400 <= tally.answer_tokens < 430 and len(rows) == len(jobs)
    assert sum(job.temperature == 0 for job in jobs) == 5


def test_sources_of_unlike_size_take_turns_by_the_root_of_it(tmp_path):
    prompts = [prompt(n, f"q{n}", source="large" if n < 400 else "small") for n in range(404)]
    _, _, tally = make(tmp_path, prompts, budget=Budget(tokens=8000), samples=1)
    small, large = tally.rows["train", "small", "MIT"], tally.rows["train", "large", "MIT"]
    assert 0.05 < small / (small + large) < 0.14  # 2 : 20


def test_answers_that_may_be_either_are_greedy_in_the_recipes_share(tmp_path):
    script = lambda job, text: f"own {job.key}" if text == "[user]" else "ok"  # noqa: E731
    prompts = [prompt(n, f"q{n}") for n in range(50)]
    jobs, _, _ = make(tmp_path, prompts, script, written_share=0.6, greedy_share=0.25, samples=1)
    answers = [job for job in jobs if b"own " in bytes(t for t in job.prompt if t < 256)]
    assert len(answers) > 60
    assert abs(sum(job.temperature == 0 for job in answers) / len(answers) - 0.25) < 0.05


def test_what_is_excluded_too_long_or_there_twice_in_the_file_is_left_out_and_counted(tmp_path):
    prompts = [prompt(0, "same"), prompt(1, " SAME "), prompt(2, "secret words"), prompt(3, "x" * 900), prompt(4, "ok")]
    _, rows, tally = make(tmp_path, prompts, samples=0, exclusions=["Secret, words!"])
    assert sorted(row[4] for row in rows) == [0, 4]
    assert tally.dropped == {"prompt there twice": 1, "prompt excluded": 1, "prompt too long": 1}


def test_the_files_beside_the_data_say_what_was_made_and_of_which_prompts(tmp_path):
    prompts = [prompt(n, f"q{n}", source=f"s{n % 2}", category="c") for n in range(4)] + [prompt(9, "x" * 900)]
    _, rows, tally = make(tmp_path, prompts, samples=1)
    summary = json.loads((tmp_path / "answers.json").read_text())
    used = [json.loads(line) for line in (tmp_path / "prompts_used.jsonl").read_text().splitlines()]
    assert summary["conversations"] == len(rows) == 8 and summary["answer_tokens"] == tally.answer_tokens == 32
    assert [row["rows"] for row in summary["by_source"]] == [4, 4] and summary["greedy_answer_tokens"] == 16
    assert [row["id"] for row in used] == ["p0", "p1", "p2", "p3"]
    assert used[0] == {
        "id": "p0",
        "source": "s0",
        "license": "MIT",
        "category": "c",
        "split": "train",
        "line": 0,
        "conversations": 2,
        "passage_tasks": 0,
    }


class Interrupting(ScriptedGenerator):
    """Stops in the middle, as a person would."""

    def run(self, feed):
        for job in feed.take(20)[:9]:
            feed.done(job.key, [*b"yes", 257])
        raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    prompts = [prompt(n, f"question {n}") for n in range(12)]
    fields = {"samples": 2, "heldout_share": 0.3}
    _, whole, wanted = make(tmp_path / "whole", prompts, **fields)
    rows, recipe = Collected(), Recipe(**(PLAIN | fields))
    arguments = (scripted_turns(), prompts, rows, tmp_path, recipe, Budget(), Exclusions())
    with pytest.raises(KeyboardInterrupt):
        answer(Interrupting(lambda *_: ""), *arguments, quiet=True)
    assert len(rows.rows) == 9
    flushes: list[int] = []
    tally = answer(ScriptedGenerator(lambda *_: "yes"), *arguments, quiet=True, flush=lambda: flushes.append(1))
    assert flushes == [1]
    assert sorted(rows.rows) == sorted(whole)
    assert (tally.answers, tally.rows, tally.tokens) == (wanted.answers, wanted.rows, wanted.tokens)


def test_a_file_to_exclude_that_is_not_there_is_said_in_words(tmp_path):
    with pytest.raises(OverdriveError, match=r"none\.jsonl: no such file or directory$"):
        Exclusions.read([tmp_path / "none.jsonl"])


def test_a_template_is_needed_and_must_keep_the_words():
    with pytest.raises(OverdriveError, match="chat template"):
        scripted_turns("{{ raise_exception('no') }}")
    with pytest.raises(OverdriveError, match="as it is"):
        scripted_turns("{{ messages[0].content | upper }}")


@pytest.mark.parametrize(
    ("template", "stops"),
    [
        (CHATML, (257,)),
        ("{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
         "{% else %} {{ m.content }}<eos>{% endif %}{% endfor %}", ()),
    ],
)  # fmt: skip
def test_frames_of_special_tokens_and_of_plain_text_are_found(template, stops):
    turns = scripted_turns(template)
    assert turns.stops == stops
    asked = turns.prompt([{"role": "user", "content": "hi"}])
    said = [*asked, *b"ho", 257]
    full = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    rendered = turns.prompt([*full, {"role": "user", "content": "so"}])
    text = turns.tokenizer.decode(turns.say(said, "so"))
    assert text.replace(" ", "") == turns.tokenizer.decode(rendered).replace(" ", "")
    written = turns.tokenizer.encode(" what is it?" + turns.reply, add_special=False)
    assert turns.words(written[: written.index(257) + 1] if stops else written) == "what is it?"
    assert turns.words(turns.tokenizer.encode("what is", add_special=False)) == ""


@pytest.mark.parametrize(
    "fields", [{"written_share": 0.8, "passage_share": 0.2}, {"top_p": (0.9, 1.1)}, {"max_len": 700}]
)
def test_a_recipe_that_cannot_be_is_refused(fields):
    with pytest.raises(OverdriveError, match="recipe: "):
        Recipe(**fields)


def test_exclusions_find_thirteen_words_in_a_row_or_the_whole(tmp_path):
    words = [f"w{n}" for n in range(20)]
    (tmp_path / "a.jsonl").write_text(json.dumps({"turns": [" ".join(words)], "n": 3}) + "\n\n" + '["Short text."]\n')
    exclusions = Exclusions.read([tmp_path])
    assert exclusions.hits("so, " + "; ".join(words[4:17]).upper() + "?") and exclusions.hits("short TEXT")
    assert not exclusions.hits(" ".join(words[4:16])) and not exclusions.hits("short") and not exclusions.hits("")
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n{broken\n')
    with pytest.raises(OverdriveError, match=r"b\.jsonl line 2 is not JSON"):
        Exclusions.read([tmp_path])
    with pytest.raises(OverdriveError, match="cannot read"):
        Exclusions.read([tmp_path / "none.jsonl"])


@pytest.mark.parametrize("wrong", [{"samples": -1}, {"max_turns": 0}, {"written_tokens": 0}, {"heldout_most": -1}])
def test_counts_that_cannot_be_are_refused(wrong):
    with pytest.raises(OverdriveError, match=next(iter(wrong))):
        Recipe(**wrong)


@pytest.mark.parametrize("wrong", [{"tokens": -1}, {"minutes": -1.0}, {"minutes": float("nan")}])
def test_a_budget_that_would_never_be_spent_is_refused(wrong):
    with pytest.raises(OverdriveError, match="at least 0"):
        Budget(**wrong)
