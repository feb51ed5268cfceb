"""Constrained decoding, as far as tokens go: which may come next, for every position of a drafted chain.

Pure: numpy and the grammar library, no device, no requests, no torch. `guidance`, `library_tokens` and `sources` alone
know the library (llguidance).

    spec  --Vetting: tried elsewhere-->  grammar text  --Programs-->  Program  --start-->  Matcher, one for each answer
    Constraint: a matcher and what stands before it (reasoning that ends with a marker)
    Walker: the masks of a step's constrained rows, along their drafts
"""

from __future__ import annotations

from overdrive.grammar.base import GrammarFault, Matcher, Program, Vocabulary
from overdrive.grammar.constraint import FREE, Constrained, Constraint, Free
from overdrive.grammar.sheet import NO_MASKS, MaskSheet

__all__ = [
    "FREE",
    "NO_MASKS",
    "Constrained",
    "Constraint",
    "Free",
    "GrammarFault",
    "MaskSheet",
    "Matcher",
    "Program",
    "Vocabulary",
]
