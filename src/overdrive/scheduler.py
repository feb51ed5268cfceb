"""Queues, admission, chunked prefill, preemption and the page bound: turns requests and a plan into a Step.

Knows token ids, lengths and pages. Lengths here are what the host knows plus the most that launched steps may add, and
bound only pages; addresses are the device's business. Must never know torch, drafters or how tokens are sampled.
"""

from __future__ import annotations

from collections.abc import Iterator

from overdrive.errors import BadRequest
from overdrive.fairness import charge, enqueue, may_overtake, requeue, shares
from overdrive.limits import Limits
from overdrive.memory.pages import PagePool
from overdrive.memory.prefix import PrefixCache
from overdrive.policy.controller import LoadView
from overdrive.request import Request, Running
from overdrive.types import MAX_DRAFTS, Admission, PageEntry, Plan, Row, Step

MOST_STUCK = 8
"""Requests for which pages lack, after which no other is looked at: each look compares prompts."""


class Scheduler:
    """Owns the waiting queue, the running rows, slots and (through the pool) pages."""

    def __init__(self, limits: Limits, pool: PagePool, cache: PrefixCache | None) -> None:
        """cache: None runs without sharing. Raises ValueError for limits that could never make progress."""
        if limits.max_step_tokens < limits.max_rows:
            raise ValueError("max_step_tokens must be at least max_rows: every row feeds a token")
        self.limits = limits
        self.pool = pool
        self.cache = cache
        self.waiting: list[Request] = []
        self.running: dict[str, Running] = {}
        self.preemptions = 0
        self.admitted_tokens = 0  # known tokens of every admission; a preempted request counts each time
        self._slots = list(range(limits.max_rows - 1, -1, -1))
        self._most_running = limits.max_rows  # fewer for a while after the device failed
        self._admissions: list[Admission] = []
        self._steps = 0
        self._flying: dict[int, tuple[Running, ...]] = {}

    # -- requests come and go ------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request. Raises BadRequest when it can never fit or the queue is full."""
        self.limits.check(len(request.prompt), request.params.max_tokens, self.pool.usable)
        if len(self.waiting) >= self.limits.max_queue + len(self._slots):  # a free slot is no queue
            raise BadRequest(
                f"the queue is full ({self.limits.max_queue} requests wait)", code="queue_full", status=429
            )
        enqueue(self.waiting, request)

    def find(self, request_id: str) -> Request | None:
        """The waiting or running request of that id."""
        running = self.running.get(request_id)
        return running.request if running else next((r for r in self.waiting if r.id == request_id), None)

    @property
    def slots_used(self) -> int:
        """Slots that are not free."""
        return self.limits.max_rows - len(self._slots)

    def living(self) -> Iterator[Request]:
        """Every request that has not finished; nothing may be submitted or removed meanwhile."""
        yield from self.waiting
        for running in self.running.values():
            yield running.request

    @property
    def held_alone(self) -> bool:
        """Whether requests wait for their grammars, and there are no others."""
        return bool(self.waiting) and not self.running and all(request.held for request in self.waiting)

    def remove(self, request: Request) -> None:
        """Forget a finished request, waiting or running; its pages and slot return at once.

        Launched steps may still hold rows of it: they write only past what was donated, before any later launch.
        """
        running = self.running.get(request.id)
        if running is None:
            self.waiting.remove(request)
        else:
            self._leave(running)
            self._most_running = min(self._most_running + 1, self.limits.max_rows)

    def _leave(self, running: Running) -> None:
        del self.running[running.request.id]
        self.pool.release(running.pages)
        self._slots.append(running.slot)
        if self._admissions:  # admitted but never launched
            self._admissions = [a for a in self._admissions if a.request_id != running.request.id]

    # -- what the next step could hold ---------------------------------------------------------------------------

    def collect(self) -> LoadView:
        """Admit what fits and describe the load to the controller. Needs no token values."""
        self._admit_waiting()
        ready = self._ready()
        decode = [r for r in ready if not r.prefilling]
        prefill = sum(min(r.target - r.fed, self.limits.chunk) for r in ready if r.prefilling)
        lengths = [r.upper_len for r in decode]
        most = min(MAX_DRAFTS, self._room_for_drafts(len(decode), prefill))
        caps = [0] * (MAX_DRAFTS + 1)
        for running, upper_len in zip(decode, lengths, strict=True):
            caps[self._cap(running, most, upper_len)] += 1
        return LoadView(
            decode_rows=len(decode),
            prefill_tokens=min(prefill, self.limits.max_step_tokens - len(decode)),
            context_tokens=sum(lengths),
            sampled_rows=sum(r.request.params.temperature > 0 for r in decode),
            caps=tuple(caps),
            masked_rows=sum(r.request.constraint.active for r in decode),
            masked_sampled=sum(r.request.constraint.active and r.request.params.temperature > 0 for r in decode),
        )

    def _ready(self) -> list[Running]:
        """Rows that may run, oldest first: none that is leaving, none that launched steps are certain to end."""
        return [r for r in self.running.values() if not r.leaving and (r.prefilling or r.tokens_left > 0)]

    def _admit_waiting(self) -> None:
        """Admit from the queue's head while slots and pages last.

        A request that shares a longer beginning with a row still computing it than with the cache waits for those
        pages (or it would compute them again); others may pass it. One that lacks pages is passed by those that
        `fairness` allows to, so that it is not overtaken for ever. Those that are held are not in the queue yet.
        """
        if not self.waiting:
            return
        free = [request for request in self.waiting if not request.held]
        stuck: list[Request] = []
        for request in free[: 2 * self.limits.max_rows]:
            if not self._slots or len(self.running) >= self._most_running or len(stuck) > MOST_STUCK:
                return
            if not may_overtake(stuck, request):
                stuck.append(request)
                continue
            pages = self._match(request)
            if self._sibling_len(request) > len(pages):
                continue
            if not self._fits(request, pages):
                stuck.append(request)
                continue
            charge(stuck, request)
            self.waiting.remove(request)
            self._admit(request, pages)

    def _match(self, request: Request) -> list[int]:
        wants_all = request.params.prompt_logprobs >= 0  # every prompt position's logits are needed
        return [] if self.cache is None or wants_all else self.cache.match(request.tokens)

    def _sibling_len(self, request: Request) -> int:
        """Most full pages of this request's beginning that a running row is about to donate."""
        if self.cache is None or request.params.prompt_logprobs >= 0:
            return 0
        size, longest = self.limits.page_size, 0
        for running in self.running.values():
            if running.donated * size + size <= running.target - 1 and not running.leaving:
                most = (min(running.target, len(request.tokens)) - 1) // size
                longest = max(longest, _common_pages(running.request.tokens, request.tokens, most, size))
        return longest

    def _fits(self, request: Request, matched: list[int]) -> bool:
        """Whether all that is known fits beside one growing page for each row that runs."""
        need = self.limits.pages(len(request.tokens) + 1) - len(matched) + self.pool.count_idle(matched)
        return need + len(self.running) <= self.pool.available or not self.running

    def _admit(self, request: Request, pages: list[int]) -> None:
        self.admitted_tokens += len(request.tokens)
        if self.cache is not None:
            self.cache.hold(pages)
        hit = len(pages) * self.limits.page_size
        if not request.started:
            request.cached_tokens = hit
        slot = self._slots.pop()
        running = Running(request, slot, pages, len(request.tokens), fed=hit, stored=hit, donated=len(pages))
        if pages:
            running.unsent.append(PageEntry(slot, 0, tuple(pages), shared=True))
        self._insert(running)
        self._admissions.append(
            Admission(request.id, slot, tuple(request.tokens), len(request.prompt), hit, request.params)
        )

    def _insert(self, running: Running) -> None:
        """Keep `running` in order of arrival: a resumed request takes its old place."""
        last = next(reversed(self.running.values()), None)
        self.running[running.request.id] = running
        if last is not None and last.request.arrival > running.request.arrival:
            self.running = dict(sorted(self.running.items(), key=lambda item: item[1].request.arrival))

    # -- a step ----------------------------------------------------------------------------------------------------

    def build(self, plan: Plan) -> Step | None:
        """The next step under `plan`, or None when nothing can run before launched steps have settled.

        Pages are bound to this step's own drafts. Where they do not last, drafts go first, then rows sit out, then the
        youngest row is preempted; its pages are never taken while a launched step holds a row of it.
        """
        while ready := self._ready():
            chosen = self._choose(ready, plan.drafts, plan.most_rows)
            if self._starved(ready, chosen):
                chosen = self._choose(ready, 0)
                if self._starved(ready, chosen):
                    self._preempt_youngest()
                    chosen = [c for c in chosen if not c[0].leaving]
            if chosen:
                return self._launch(plan, chosen)
            if any(r.launched for r in self.running.values()):
                return None
        return None

    def _choose(self, ready: list[Running], drafts: int, most_rows: int = -1) -> list[tuple[Running, int, int]]:
        """(row, known, drafts) of the rows that pages and the token budget allow, decode rows before prefill chunks."""
        left_tokens = self.limits.max_step_tokens
        left_pages = self.pool.available
        decode = [r for r in ready if not r.prefilling]
        prefill = [r for r in ready if r.prefilling]
        drafts = min(drafts, self._room_for_drafts(len(decode), sum(r.target - r.fed for r in prefill)))
        plain = self._kept_plain(decode, drafts, most_rows)
        chosen = []
        for running in decode:
            k = 0 if running.slot in plain else self._most_drafts(running, drafts, left_pages)
            need = self._missing_pages(running, 1, k)
            if 1 + k <= left_tokens and need <= left_pages:
                left_tokens -= 1 + k
                left_pages -= need
                chosen.append((running, 1, k))
        parts = shares([r.target - r.fed for r in prefill], left_tokens, self.limits.chunk)
        for running, part in zip(prefill, parts, strict=True):
            known = min(part, (len(running.pages) + left_pages) * self.limits.page_size - running.fed)
            if known > 0:
                left_pages -= self._missing_pages(running, known, 0)
                chosen.append((running, known, 0))
        return chosen

    def _kept_plain(self, decode: list[Running], drafts: int, most_rows: int) -> set[int]:
        """Slots that shall not draft, so that only `most_rows` do: those of which the drafter lacks most."""
        if not 0 <= most_rows < len(decode):
            return set()
        able = [r for r in decode if self._cap(r, drafts, r.upper_len)]
        able.sort(key=lambda running: running.unread)
        return {running.slot for running in able[most_rows:]}

    def _room_for_drafts(self, decode_rows: int, prefill: int) -> int:
        """Most drafts for every decode row that leave a chunk of the prompts their place in the step."""
        room = self.limits.max_step_tokens - min(prefill, self.limits.chunk)
        return max(0, room // decode_rows - 1) if decode_rows else 0

    def _most_drafts(self, running: Running, drafts: int, left_pages: int) -> int:
        """A row's own cap, and the room in its pages."""
        upper_len = running.upper_len
        room = (len(running.pages) + left_pages) * self.limits.page_size - upper_len
        return max(0, min(self._cap(running, drafts, upper_len), room))

    def _cap(self, running: Running, drafts: int, upper_len: int) -> int:
        """At most `drafts`, what the row asked for, the tokens it still wants, and the room in the model."""
        asked = running.request.params.max_drafts
        if asked >= 0:
            drafts = min(drafts, asked)
        return max(0, min(drafts, running.tokens_left - 1, self.limits.max_model_len - upper_len))

    def _missing_pages(self, running: Running, known: int, drafts: int) -> int:
        return max(0, self.limits.pages(self._bound(running, known, drafts)) - len(running.pages))

    def _bound(self, running: Running, known: int, drafts: int) -> int:
        """One past the last position the row can need KV for.

        Past the request's own end the tokens are never committed, and those positions may fall on the scratch page.
        """
        if running.prefilling:
            return running.fed + known
        return min(running.upper_len + drafts, running.request.most_len)

    def _starved(self, ready: list[Running], chosen: list[tuple[Running, int, int]]) -> bool:
        """Whether a row lacks pages (and not merely the step's tokens) after the chosen rows have taken theirs."""
        taken = {id(r) for r, _, _ in chosen}
        left = self.pool.available - sum(self._missing_pages(*c) for c in chosen)
        waiting = [r for r in ready if id(r) not in taken]
        return any(self._missing_pages(r, 1, 0) > left for r in waiting)

    def _preempt_youngest(self) -> None:
        """Mark the youngest row but the oldest, unless one is on its way out already: its pages may be enough."""
        rows = list(self.running.values())
        victims = rows[1:]
        if not victims or any(r.leaving for r in rows):
            return
        victims[-1].leaving = True
        if not victims[-1].launched:
            self.evict(victims[-1])

    def evict(self, running: Running) -> None:
        """Send a leaving row with nothing in flight back to the head of the queue."""
        assert running.launched == 0
        self.preemptions += 1
        self._leave(running)
        requeue(self.waiting, running.request)

    def _launch(self, plan: Plan, chosen: list[tuple[Running, int, int]]) -> Step:
        rows = tuple(self._row(*c) for c in chosen)
        entries = []
        for running, _, _ in chosen:
            entries.extend(running.unsent)
            running.unsent.clear()
        slots = {row.slot for row in rows}
        admissions = tuple(a for a in self._admissions if a.slot in slots)
        self._admissions = [a for a in self._admissions if a.slot not in slots]
        self._steps += 1
        self._flying[self._steps] = tuple(running for running, _, _ in chosen)
        masked = tuple(i for i, (r, _, _) in enumerate(chosen) if r.request.constraint.active and rows[i].emits)
        return Step(self._steps, rows, plan, admissions, tuple(entries), masked)

    def flying(self, step: Step) -> tuple[Running, ...]:
        """The requests of a launched step's rows; finished ones are among them."""
        return self._flying[step.number]

    def land(self, step: Step) -> tuple[Running, ...]:
        """A launched step has arrived: its rows' requests, no longer in flight; finished ones are among them."""
        flown = self._flying.pop(step.number)
        for row, running in zip(step.rows, flown, strict=True):
            running.launched -= 1
            running.emitting -= row.emits
            running.in_flight -= (row.drafts + 1) * row.emits
        return flown

    def forget_flights(self) -> None:
        """No launched step will arrive any more (the device failed); the caller ends every running request."""
        self._flying.clear()

    def preempt_all(self) -> None:
        """The device failed or ran out of memory, and no launched step will arrive: everyone goes back to the queue.

        Half as many run at first, and one more each time a request ends.
        """
        self._most_running = max(1, len(self.running) // 2)
        self.forget_flights()
        for running in list(self.running.values()):
            running.launched = running.emitting = running.in_flight = 0
            self.evict(running)

    def _row(self, running: Running, known: int, drafts: int) -> Row:
        params = running.request.params
        grow = self._missing_pages(running, known, drafts)
        if grow > 0:
            pages = self.pool.take(grow)
            running.unsent.append(PageEntry(running.slot, len(running.pages), tuple(pages)))
            running.pages.extend(pages)
        prefilling = running.prefilling
        emits = not prefilling or running.fed + known == running.target
        bound = running.fed + known if prefilling else running.upper_len + drafts
        scores = params.prompt_logprobs if prefilling and running.fed < len(running.request.prompt) - 1 else -1
        forced = running.request.constraint.certain(drafts) if drafts and not running.in_flight else ()
        running.fed += known if prefilling else 0
        running.launched += 1
        running.emitting += emits
        running.in_flight += (drafts + 1) * emits
        if drafts:
            running.read = running.upper_len
        return Row(running.request.id, running.slot, known, drafts, emits, bound, params.logprobs, scores, forced)


def _common_pages(a: list[int], b: list[int], most: int, size: int) -> int:
    """Leading pages, at most `most`, in which two token lists agree."""
    pages = 0
    while pages < most and a[pages * size : (pages + 1) * size] == b[pages * size : (pages + 1) * size]:
        pages += 1
    return pages
