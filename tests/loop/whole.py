"""An Engine around a bench: what the engine process serves, without a model's files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from overdrive.compiling import Compiling
from overdrive.engine import Engine, Meter
from overdrive.grammar.programs import Programs
from overdrive.policy.acceptance import DraftCounts
from overdrive.policy.lever import Lever
from tests.grammar.words import END_OF_TURN, EOS, programs

from .bench import Bench
from .tiny_engine import VOCAB


class Complete:
    """Every rank is there."""

    failure = ""


def whole(bench: Bench, others: Any = Complete(), compiled: Programs | None = None) -> Engine:
    """others: the ranks. compiled: grammars, by default compiled on threads."""
    info: Any = SimpleNamespace(vocab_size=VOCAB, simulated_acceptance="")
    meter = Meter(DraftCounts(bench.runner.sources, 15))
    compiling = Compiling(compiled or programs(), (EOS, END_OF_TURN))
    lever = Lever(bench.loop._controller, "given", 15)
    rooms = bench.scheduler, bench.committer, lever, bench.loop, meter
    pieces = [bytes([token]) for token in range(VOCAB)]
    return Engine(info, *rooms, pieces, compiling, others, compiling.close)
