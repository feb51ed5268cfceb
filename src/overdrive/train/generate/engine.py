"""`Generator` over the server's own engine: the same text as the server's, on whatever device the engine runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from overdrive.config import DraftOptions, EngineOptions, ModelOptions, SchedulerOptions
from overdrive.engine import Engine, build
from overdrive.progress import Progress
from overdrive.train.generate.jobs import Feed, Job, check
from overdrive.types import SamplingParams

_QUEUED_PER_ROW = 2


class EngineGenerator:
    """Keeps an engine supplied with jobs. Used by one thread.

    stops: ids that end an answer beside the model's own. Raises OverdriveError for whatever is wrong with the model.
    """

    def __init__(
        self, model: str, options: ModelOptions, stops: Iterable[int], *, rows: int, max_len: int, progress: Progress
    ) -> None:
        scheduler = SchedulerOptions(max_rows=rows, max_queue=rows * (1 + _QUEUED_PER_ROW))
        engine_options = EngineOptions(
            model=replace(options, max_model_len=max_len), scheduler=scheduler, draft=DraftOptions(draft="none")
        )
        self._engine: Engine = build(model, engine_options, progress)
        self._rows = rows
        self.stops = tuple(sorted({*stops, *self._engine.info.eos_ids}))
        self.max_len = self._engine.info.max_model_len

    def run(self, feed: Feed) -> None:
        """Until the feed has no more jobs and every answer is given back."""
        running: dict[str, tuple[Job, list[int]]] = {}
        while True:
            for job in feed.take(max(0, self._rows * _QUEUED_PER_ROW - len(running))):
                check(job, self.max_len)
                self._engine.submit(str(job.key), job.prompt, self._params(job))
                running[str(job.key)] = (job, [])
            if not running:
                return
            for delta in self._engine.advance():
                job, ids = running[delta.request.id]
                ids += delta.tokens
                if delta.finish is not None:
                    del running[delta.request.id]
                    feed.done(job.key, ids)

    def close(self) -> None:
        """Let go of the engine's threads."""
        self._engine.close()

    def _params(self, job: Job) -> SamplingParams:
        return SamplingParams(
            max_tokens=job.max_tokens,
            temperature=job.temperature,
            top_p=job.top_p if job.temperature else 1.0,
            seed=job.key,
            stop_token_ids=self.stops,
        )
