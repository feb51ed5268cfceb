"""Laws of messages: what the system says reaches people in its words, and without its numbers."""

from __future__ import annotations

import errno
import socket

from overdrive.errors import system_reason


def test_an_error_of_the_system_is_said_without_its_number_and_file():
    assert (
        system_reason(FileNotFoundError(errno.ENOENT, "No such file or directory", "x")) == "no such file or directory"
    )
    assert system_reason(ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed")) == "connection refused"
    assert system_reason(socket.gaierror(-2, "Name or service not known")) == "Name or service not known"


def test_the_system_is_heard_through_what_a_library_makes_of_it():
    try:
        try:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        except OSError:
            raise RuntimeError("[Errno 104] Connection reset by peer") from None
    except RuntimeError as error:
        assert system_reason(error) == "connection reset by peer"


def test_time_that_is_over_is_said_in_words():
    try:
        raise ValueError from TimeoutError()
    except ValueError as error:
        assert system_reason(error) == "timed out"


def test_other_errors_say_what_they_say():
    assert system_reason(ValueError("no\nway")) == "no"
    assert system_reason(OSError("no memory")) == "no memory"
