"""A chat in the terminal: text is written as it arrives, with nothing between the stream and the screen."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from overdrive.api_keys import WAYS
from overdrive.config import EngineOptions
from overdrive.errors import OverdriveError, system_reason
from overdrive.json_text import parse_json

Messages = list[dict[str, str]]
COMMANDS = "/reset forgets the conversation, /exit ends it, Ctrl-C stops an answer."


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the person chose; None leaves it to the model."""

    system: str = ""
    temperature: float | None = None
    max_tokens: int | None = None

    def parameters(self) -> dict[str, Any]:
        """The chosen ones, by their names in the API."""
        given = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in given.items() if value is not None}


class Speaker(Protocol):
    """The other side of the conversation."""

    def reply(self, messages: Messages) -> Iterator[str]:
        """The answer to `messages`, piece by piece. Closing the iterator stops it."""
        ...


class RemoteSpeaker:
    """A server that speaks OpenAI's protocol. model: "" is the server's first one. api_key: of `client_key`."""

    def __init__(self, url: str, model: str, api_key: str, settings: Settings) -> None:
        import httpx

        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        base = url.rstrip("/").removesuffix("/v1")
        if "://" not in base:
            base = f"http://{base}"
        self._errors: type[Exception] = httpx.HTTPError
        try:
            self._http = httpx.Client(base_url=base, headers=headers, timeout=httpx.Timeout(10, read=None))
        except httpx.InvalidURL as error:
            raise OverdriveError(f"{base} is no URL: {error}") from error
        self._settings = settings
        self._url = base
        self._model = model or self._first_model()

    def _first_model(self) -> str:
        try:
            response = self._http.get("/v1/models")
            if response.status_code != 200:
                refusal = _refusal(response.status_code, response.content)
                raise OverdriveError(f"{self._url} answers {response.status_code}: {refusal}")
            return response.json()["data"][0]["id"]
        except self._errors as error:
            raise OverdriveError(f"cannot reach {self._url}: {system_reason(error)}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise OverdriveError(f"{self._url} is not a server of OpenAI's protocol") from error

    def reply(self, messages: Messages) -> Iterator[str]:
        body = {"model": self._model, "messages": messages, "stream": True, **self._settings.parameters()}
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    raise OverdriveError(_refusal(response.status_code, response.read()))
                yield from _texts(response.iter_lines())
        except self._errors as error:
            raise OverdriveError(f"the connection to {self._url} failed: {system_reason(error)}") from error


class LocalSpeaker:
    """A model in this process."""

    def __init__(self, model: str, options: EngineOptions, settings: Settings) -> None:
        from overdrive import LLM

        self._llm = LLM(model, options=options)
        self._settings = settings

    def reply(self, messages: Messages) -> Iterator[str]:
        return self._llm.stream_chat(messages, **self._settings.parameters())


def _texts(lines: Iterator[str]) -> Iterator[str]:
    """Text of server-sent events."""
    for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = parse_json(line.removeprefix("data: "))
        if "error" in event:
            raise OverdriveError(event["error"]["message"])
        for choice in event["choices"]:
            yield choice["delta"].get("content") or ""


def _refusal(status: int, body: bytes) -> str:
    """The message of an error response, or what there is of it; and the option that helps, where one does."""
    try:
        message = str(parse_json(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = body[:200].decode(errors="replace")
    return f"{message}; {WAYS}" if status == 401 else message


def converse(speaker: Speaker, settings: Settings, out: TextIO = sys.stdout) -> bool:
    """Reads lines and writes answers until /exit or the end of input. A refused message is taken back.

    Returns whether none was refused.
    """
    for stream in (sys.stdin, out):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what is no text ends no conversation
    opening: Messages = [{"role": "system", "content": settings.system}] if settings.system else []
    messages, fine = list(opening), True
    if of_a_person():
        print(COMMANDS, file=sys.stderr)
    while (line := _ask()) is not None and line not in ("/exit", "/quit"):
        if line == "/reset":
            messages = list(opening)
        elif line in ("/help", "/?"):
            print(COMMANDS, file=sys.stderr)
        elif line:
            messages.append({"role": "user", "content": line})
            answer = _speak(speaker, messages, out)
            if answer is None:
                fine = False
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": answer})
    return fine


def of_a_person() -> bool:
    """Whether lines are typed, not sent by a program."""
    return sys.stdin is not None and sys.stdin.isatty()


def _ask() -> str | None:
    try:
        if of_a_person():
            return input("> ").strip()
        line = sys.stdin.readline() if sys.stdin is not None else ""  # None was closed before the start
        return line.strip() if line else None
    except (EOFError, KeyboardInterrupt):
        return None


def _speak(speaker: Speaker, messages: Messages, out: TextIO) -> str | None:
    """Writes one answer and returns it; None when it was refused. Ctrl-C keeps what was said so far."""
    said: list[str] = []
    pieces: Iterator[str] = iter(())
    try:
        pieces = speaker.reply(messages)
        for piece in pieces:
            said.append(piece)
            _write(piece, out)
    except OverdriveError as error:
        print(f"overdrive: {error}", file=sys.stderr)
        return None
    except KeyboardInterrupt:
        getattr(pieces, "close", lambda: None)()
    _write("\n", out)
    return "".join(said)


def _write(text: str, out: TextIO) -> None:
    """Ends the program where nobody reads on, as behind `| head`, and where there is no room."""
    try:
        out.write(text)
        out.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # or what is left would fail once more at the end
        if isinstance(error, BrokenPipeError):
            sys.exit(141)
        sys.exit(f"overdrive: the answer cannot be written: {system_reason(error)}")
