"""A target that needs no model: ids are bytes, answers are scripted, and a chat template frames them."""

from __future__ import annotations

from collections.abc import Callable

from overdrive.text import ByteTokenizer, ChatTemplate
from overdrive.train.generate.jobs import Feed, Job, check
from overdrive.train.generate.turns import Turns
from overdrive.train.prompts import Prompt

EOS = ByteTokenizer.EOS
CHATML = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


class NamedBytes(ByteTokenizer):
    """Bytes, with the end token where its name stands, as a real vocabulary reads special tokens."""

    def _encode(self, text: str) -> list[int]:
        first, *rest = text.split("<eos>")
        return list(first.encode()) + [token for part in rest for token in (EOS, *part.encode())]


def scripted_turns(template: str = CHATML) -> Turns:
    tokenizer = NamedBytes()
    return Turns.of(tokenizer, ChatTemplate({"default": template}, tokenizer.special_tokens, "scripted"))


def prompt(line: int, words: str, **fields) -> Prompt:
    message = {"role": "user", "content": words}
    return Prompt(**({"line": line, "messages": (message,), "id": f"p{line}", "license": "MIT"} | fields))


class ScriptedGenerator:
    """Answers with what `script` says to a job's text, closed by the end token; cut at the job's limit. Several at a
    time, the youngest first."""

    stops = (EOS,)

    def __init__(self, script: Callable[[Job, str], str], max_len: int = 1024, together: int = 5) -> None:
        self._script, self.max_len, self._together = script, max_len, together
        self.jobs: list[Job] = []
        self._tokenizer = ByteTokenizer()

    def run(self, feed: Feed) -> None:
        running: list[Job] = []
        while True:
            running += feed.take(self._together - len(running))
            if not running:
                return
            job = running.pop()
            check(job, self.max_len)
            self.jobs.append(job)
            said = self._script(job, self._tokenizer.decode(job.prompt, skip_special=False))
            feed.done(job.key, [*said.encode(), EOS][: job.max_tokens])


class Collected:
    """A writer that keeps what it is given: (text with its special tokens, answered text, split, category, line)."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, str, int]] = []
        self._tokenizer = ByteTokenizer()

    def add(self, tokens, answer_mask, split, category="", prompt=-1) -> None:
        assert len(tokens) == len(answer_mask)
        said = [token for token, answered in zip(tokens, answer_mask, strict=True) if answered]
        texts = [self._tokenizer.decode(ids, skip_special=False) for ids in (tokens, said)]
        self.rows.append((*texts, split, category, prompt))
