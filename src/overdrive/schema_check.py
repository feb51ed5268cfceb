"""`overdrive schema-check`: whether answers can be held to a JSON schema, and what one would look like. No model."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from overdrive.errors import BadRequest, OverdriveError
from overdrive.grammar.base import GrammarFault
from overdrive.grammar.trial import byte_compiler, sample

SEED = 7


def check_files(files: Sequence[Path]) -> bool:
    """Print a line for each file, and a sample of what its schema allows. Returns whether all can be used.

    Raises OverdriveError for a file that cannot be read.
    """
    compiler, fine = byte_compiler(), True
    for file in files:
        try:
            source = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OverdriveError(f"cannot read {file}: {error}") from error
        try:
            program = compiler("json_schema", source)
            print(f"{file}: supported; for example")
            print("  " + json.dumps(json.loads(sample(program, random.Random(SEED))), ensure_ascii=False))
        except BadRequest as error:
            fine = False
            print(f"{file}: {error}")
        except GrammarFault as fault:
            print(f"  (none: {fault})")
    return fine
