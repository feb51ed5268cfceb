"""`overdrive schema-check`: whether answers can be held to a JSON schema, and what one would look like. No model."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from overdrive.errors import BadRequest, OverdriveError
from overdrive.grammar.base import GrammarFault, NotNow
from overdrive.grammar.trial import byte_compiler, sample
from overdrive.grammar.vetting import Vetting

SEED = 7
MOST_SECONDS = 60.0
"""To wait for a verdict: a busy machine may need long for the processor time that a grammar may take."""


def check_files(files: Sequence[Path]) -> bool:
    """Print a line for each file, and a sample of what its schema allows. Returns whether all can be used.

    A schema is tried as a server tries it, with the same limits on time and memory. Raises OverdriveError for a file
    that cannot be read.
    """
    sources = [_read(file) for file in files]
    fine = True
    with closing(Vetting(byte_compiler)) as vetting:
        for file, source in zip(files, sources, strict=True):
            fine = _check(file, source, vetting) and fine
    return fine


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise OverdriveError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise OverdriveError(f"{file} is no text in UTF-8") from None


def _check(file: Path, source: str, vetting: Vetting) -> bool:
    try:
        vetting("json_schema", source, MOST_SECONDS).result()
    except (BadRequest, NotNow) as error:
        print(f"{file}: {error}")
        return False
    program = byte_compiler()("json_schema", source)
    print(f"{file}: supported; for example")
    try:
        print("  " + json.dumps(json.loads(sample(program, random.Random(SEED))), ensure_ascii=False))
    except GrammarFault as fault:
        print(f"  (none: {fault})")
    return True
