"""The command line: quick help, one-line mistakes, a chat with a server."""

from __future__ import annotations

import ast
import io
import os
import signal
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from overdrive import config
from overdrive.bench import options as bench_options
from overdrive.chat import RemoteSpeaker, Settings, converse
from overdrive.checks import check_engine, check_server
from overdrive.config import (
    DeviceOptions,
    DraftOptions,
    EngineOptions,
    MemoryOptions,
    ModelOptions,
    SchedulerOptions,
    ServerOptions,
)
from overdrive.errors import OverdriveError
from overdrive.train import options as train_options
from overdrive.train.generate import recipe
from tests.patience import PATIENCE

from .fakes import TEXT, speak


def overdrive(*arguments, stdin=""):
    command = [sys.executable, "-m", "overdrive.cli", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300)


@pytest.fixture
def nobody():
    """The address of a port where nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize("command", [[], ["serve"], ["chat"]])
def test_help_shows_options_of_the_config(command):
    shown = overdrive(*command, "--help").stdout
    assert "Usage: overdrive" in shown
    if command == ["serve"]:
        assert all(f"--{name}" in shown for name in ("max-rows", "draft", "drafts", "page-size", "threads", "port"))
        assert "curl" in shown


def test_a_paragraph_of_help_is_one_line_of_the_source():
    """Continued lines would be shown as a quotation."""
    for file in (config, train_options, recipe, bench_options):
        source = ast.parse(Path(file.__file__).read_text())
        for options in [node for node in source.body if isinstance(node, ast.ClassDef)]:
            for before, node in pairwise(options.body):
                if isinstance(before, ast.AnnAssign) and isinstance(node, ast.Expr):
                    assert "\n" not in ast.literal_eval(node.value), f"{options.name}: {ast.unparse(before)}"


def test_an_interrupt_leaves_no_trace_even_while_modules_are_imported():
    command = [sys.executable, "-X", "importtime", "-m", "overdrive", "schema-check", "/dev/stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "cyclopts" in line:
                process.send_signal(signal.SIGINT)
                break
        told = process.stderr.read()
        # Where it came within exec() of a string, as in dataclasses, Python ends itself by the signal: 130 in a shell.
        assert process.wait(PATIENCE) in (130, -signal.SIGINT) and "Traceback" not in told


def test_the_command_line_loads_nothing_heavy():
    script = "import overdrive.cli, sys; print([m for m in ('torch', 'fastapi', 'numpy', 'zmq') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["serve"], 2, "MODEL"),
        (["serve", "m", "--max-rows", "x"], 2, "--max-rows"),
        (["serve", "m", "--drft", "none"], 2, "--draft"),
        (["serve", "m", "--draft", "magic"], 2, "magic"),
        (["serve", "m", "--page-size", "3"], 1, "--page-size"),
        (["chat"], 1, "--url"),
        (["chat", "--url", "http://127.0.0.1:9"], 1, "http://127.0.0.1:9"),
        (["benchmark"], 2, "benchmark"),
        (["bench", "sweep"], 1, "which server"),
        (["bench", "sweep", "http://127.0.0.1:9"], 1, "http://127.0.0.1:9"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(arguments, code, word):
    result = overdrive(*arguments)
    assert (result.returncode, result.stdout) == (code, "")
    assert result.stderr.count("\n") == 1
    assert word in result.stderr


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"memory": MemoryOptions(page_size=12)}, "--page-size"),
        ({"memory": MemoryOptions(page_size=0)}, "--page-size"),
        ({"memory": MemoryOptions(kv_tokens=-1)}, "--kv-tokens"),
        ({"memory": MemoryOptions(kv_tokens=8)}, "--kv-tokens"),
        ({"scheduler": SchedulerOptions(max_rows=-1)}, "--max-rows"),
        ({"scheduler": SchedulerOptions(chunk=-1)}, "--chunk"),
        ({"scheduler": SchedulerOptions(max_queue=-1)}, "--max-queue"),
        ({"scheduler": SchedulerOptions(max_rows=64, max_step_tokens=63)}, "--max-step-tokens"),
        ({"draft": DraftOptions(drafts=-1)}, "--drafts"),
        ({"draft": DraftOptions(drafts=65)}, "--drafts"),
        ({"draft": DraftOptions(ngram_min=0)}, "--ngram-min"),
        ({"draft": DraftOptions(draft_window=15)}, "--draft-window"),
        ({"draft": DraftOptions(draft="ngram", draft_model="head")}, "--draft-model"),
        ({"draft": DraftOptions(draft="none", draft_model="head")}, "--draft-model"),
        ({"draft": DraftOptions(draft="small")}, "--draft small needs --draft-model"),
        ({"draft": DraftOptions(draft="ngram+small")}, r"--draft ngram\+small needs --draft-model"),
        ({"device": DeviceOptions(threads=-2)}, "--threads"),
        ({"device": DeviceOptions(threads=100000)}, "--threads"),
        ({"model": ModelOptions(max_model_len=-5)}, "--max-model-len"),
        ({"model": ModelOptions(chat_template="/no/such")}, "--chat-template"),
    ],
)
def test_engine_options_that_cannot_work_are_named(options, name):
    with pytest.raises(OverdriveError, match=f"^{name}"):
        check_engine(EngineOptions(**options))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"port": 70000}, "--port"),
        ({"port": -1}, "--port"),
        ({"max_body_bytes": 0}, "--max-body-bytes"),
        ({"drain_seconds": -1.0}, "--drain-seconds"),
        ({"drain_seconds": float("nan")}, "--drain-seconds"),
        ({"max_restarts": -1}, "--max-restarts"),
        ({"engine_timeout": 0.5}, "--engine-timeout"),
        ({"engine_timeout": float("nan")}, "--engine-timeout"),
        ({"request_seconds": 0.0}, "--request-seconds"),
        ({"otlp_endpoint": "localhost:4318"}, "--otlp-endpoint"),
        ({"cors_origin": ("example.org",)}, "--cors-origin"),
        ({"cors_origin": ("https://example.org/",)}, "--cors-origin"),
    ],
)
def test_server_options_that_cannot_work_are_named(options, name):
    with pytest.raises(OverdriveError, match=f"^{name}"):
        check_server(ServerOptions(**options))


def test_defaults_pass_the_checks():
    check_engine(EngineOptions())
    check_server(ServerOptions(cors_origin=("*", "http://localhost:3000")))


def test_chat_remembers_the_conversation_until_reset(server, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n/help\n/reset\nthree\n/exit\nnever"))
    settings = Settings(system="be brief", temperature=0.0, max_tokens=100)
    server.engine.script = lambda submit: speak(submit, text="ok")
    out = io.StringIO()
    assert converse(RemoteSpeaker(server.url, "", "", settings), settings, out)
    prompts = [bytes(submit.prompt).decode() for submit in server.engine.submits]
    opening = "<system>be brief\n"
    assert prompts[1] == f"{opening}<user>one\n<assistant>ok\n<user>two\n<a>"
    assert prompts[2] == f"{opening}<user>three\n<a>"
    assert out.getvalue() == "ok\nok\nok\n"
    assert server.engine.submits[0].params.temperature == 0.0


def test_a_refused_message_is_taken_back(server, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("x" * 300 + "\nhi\n"))
    out = io.StringIO()
    assert not converse(RemoteSpeaker(f"{server.url}/v1", "tiny", "", Settings()), Settings(), out)
    assert out.getvalue() == TEXT + "\n"
    assert "200" in capsys.readouterr().err


@pytest.mark.parametrize(("lines", "code"), [("hi\n", 0), ("hi\n" + "x" * 300 + "\n", 1)])
def test_lines_from_a_program_that_are_refused_are_in_the_exit_code(server, lines, code):
    done = overdrive("chat", "--url", server.url, stdin=lines)
    assert (done.returncode, done.stdout) == (code, TEXT + "\n")


def test_lines_that_are_no_text_are_answered_all_the_same(server):
    command = [sys.executable, "-m", "overdrive.cli", "chat", "--url", server.url]
    for encoding in ("utf-8:strict", "utf-8:surrogateescape", "ascii"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(command, input=b"\xff \xc3\xa4\n", capture_output=True, timeout=300, env=environment)
        assert (done.returncode, done.stderr) == (0, b""), encoding
    assert "\N{REPLACEMENT CHARACTER}" in bytes(server.engine.submits[-1].prompt).decode()


def test_a_chat_whose_answers_nobody_reads_ends_without_a_word(server):
    command = [sys.executable, "-m", "overdrive.cli", "chat", "--url", server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        process.stdin.write(b"hi\n")
        process.stdin.close()
        assert (process.stderr.read(), process.wait(PATIENCE)) == (b"", 141)


def test_an_address_that_is_no_url_is_named():
    with pytest.raises(OverdriveError, match="is no URL"):
        RemoteSpeaker("http://[::1", "", "", Settings())


def test_a_server_that_is_not_there_is_said_in_words(nobody):
    with pytest.raises(OverdriveError, match=rf"^cannot reach {nobody}: connection refused$"):
        RemoteSpeaker(nobody, "", "", Settings())
    with pytest.raises(OverdriveError, match=rf"^the connection to {nobody} failed: connection refused$"):
        list(RemoteSpeaker(nobody, "tiny", "", Settings()).reply([{"role": "user", "content": "hi"}]))


def test_an_answer_that_cannot_be_written_is_said_in_words(server):
    command = [sys.executable, "-m", "overdrive.cli", "chat", "--url", server.url]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, input=b"hi\n", stdout=full, stderr=subprocess.PIPE, timeout=300)
    said = b"overdrive: the answer cannot be written: no space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_a_chat_takes_its_key_from_the_environment_and_never_shows_it(make_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    done = overdrive("chat", "--url", make_server(api_key=("sesame",)).url, stdin="hi\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{TEXT}\n", "")


def test_a_chat_with_a_server_that_wants_a_key_is_told_how_to_give_it(make_server):
    server = make_server(api_key=("secret",))
    for key in ("", "wrong"):
        with pytest.raises(OverdriveError, match="--api-key"):
            RemoteSpeaker(server.url, "", key, Settings())
        with pytest.raises(OverdriveError, match="--api-key"):
            list(RemoteSpeaker(server.url, "tiny", key, Settings()).reply([{"role": "user", "content": "hi"}]))
