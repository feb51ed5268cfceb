"""What a head does with its slots around its passes, in static shapes: nothing here waits for the device.

    plan_pairs   which pairs each row reads, as a padded batch with their taps     before a pass over known tokens
    note_pairs   they are read                                                     behind it
    plan_drafts  each row's newest draft as its next pair                          before a later depth's pass
    keep         taps of what the target fed and that stands                       after every step
    begin        slots of new requests; `begin_text` without taps                  on admission
    take_along   pages exchanged for equal ones                                    on page entries

The first four can stand in CUDA graphs. Here they are written in torch, for any device; `step_kernels` has them in one
launch each. Knows places and pages; never the network, plans or requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV
from overdrive.device.batch import Batch
from overdrive.device.state import SlotState
from overdrive.draft.eagle3.slots import FIRST, HeadSlots
from overdrive.draft.padded import DescribedRows, PaddedDrafts


class Fed(NamedTuple):
    """The newest step of some slots, whose taps are still there. rows: [R] int64, of the step, in which each fed known
    tokens alone. batch, taps: as for `PaddedDrafter.absorb`."""

    rows: Tensor
    batch: Batch
    taps: Tensor


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much each of R rows reads in one pass; slots and most: [R] int64.

    newest: a row of which `most` is not 0 wants drafts, and reads all up to the pair of its newest token, which is no
    more than `width`. Otherwise a row reads at most `most` pairs, up to the one before that. tokens: T, of the pass.
    fed: a step that may be longer than the ring.
    """

    slots: Tensor
    most: Tensor
    newest: bool
    tokens: int
    fed: Fed | None = None

    @property
    def width(self) -> int:
        """Tokens for each row."""
        return self.tokens // len(self.slots)


class Pairs(NamedTuple):
    """A pass over known tokens. batch: padded; `wanted` [R] is each row's last pair, 0 for rows without.

    taps: [T, W] of the position before each pair's place. next_positions: [R], of the token that follows the newest.
    """

    batch: Batch
    taps: Tensor
    next_positions: Tensor


class Extent(NamedTuple):
    """Rows' pairs, [R] each: `begins .. begins + counts - 1`; gaps [R, 2] as they are then."""

    begins: Tensor
    counts: Tensor
    gaps: Tensor


def extent(state: SlotState, head: HeadSlots, wanted: Wanted) -> Extent:
    """Which pairs rows read. What there are no taps of any more becomes part of the row's gap.

    Pair p at place p + 1 needs the taps of position p; `kept` is the first place that has its own.
    """
    computed, stops = state.computed[wanted.slots], head.stops[wanted.slots]
    kept = computed - head.window
    if wanted.fed is not None:
        kept = torch.minimum(kept, fed_from(wanted.fed) - 1)
    kept = torch.maximum(head.oldest[wanted.slots], kept) + 1
    begins = torch.maximum(stops, kept)
    gaps, lost = head.gaps[wanted.slots], stops < kept
    gap = torch.where(gaps[:, 1] > 0, gaps[:, 0], stops)
    gaps = torch.where(lost.unsqueeze(1), torch.stack((gap, kept), dim=1), gaps)
    most = (wanted.most > 0) * wanted.width if wanted.newest else wanted.most
    counts = torch.minimum((computed + int(wanted.newest) - begins).clamp(min=0), most)
    return Extent(begins, counts, gaps)


def fed_from(fed: Fed) -> Tensor:
    """The first position that each row fed, [R]."""
    return fed.batch.positions[fed.batch.offsets[fed.rows]]


def plan_pairs(state: SlotState, head: HeadSlots, wanted: Wanted, firsts: Tensor) -> Pairs:
    """The pass that reads what is wanted. firsts: [at least R], all FIRST, which the batch will refer to."""
    slots, n_rows = wanted.slots, len(wanted.slots)
    begins, counts, gaps = extent(state, head, wanted)
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    token = torch.arange(wanted.tokens, device=slots.device)
    rows = torch.searchsorted(offsets[1:], token, right=True).clamp(max=n_rows - 1)
    live, of_slot = token < offsets[-1], slots[rows]
    places = torch.where(live, begins[rows] + token - offsets[rows], 0)
    batch = Batch(
        ids=torch.where(live, state.history[of_slot, places].long(), 0),
        positions=places,
        rows=rows,
        offsets=offsets,
        page_table=state.page_table[slots],
        starts=firsts[:n_rows],
        gaps=gaps,
        writes=torch.where(live, flat_places(state, of_slot, places), 0),
        wanted=(offsets[1:] - 1).clamp(min=0),
    )
    taps = head.ring[of_slot, (places - 1) % head.window]
    if wanted.fed is not None:
        taps = _fed_taps(state, head, wanted.fed, batch, of_slot, taps)
    return Pairs(batch, taps, state.lengths[slots])


def _fed_taps(state: SlotState, head: HeadSlots, fed: Fed, batch: Batch, slots: Tensor, ring: Tensor) -> Tensor:
    """Taps of the batch's pairs, [T, W]: the step's own where it fed them, else those before it.

    ring: what the ring has in their places, after the step. slots: of the batch's tokens.
    """
    since = fed_from(fed)[batch.rows]
    ahead = batch.positions - 1 - since  # index of the position in the step, -1 for the one before it
    token = fed.batch.offsets[fed.rows[batch.rows]] + ahead.clamp(min=0)
    own = fed.taps[token.clamp(max=len(fed.taps) - 1)]
    filled = (state.computed[slots] - since >= head.window) & (ahead == -1)
    older = torch.where(filled.unsqueeze(1), head.before[slots], ring)
    return torch.where((ahead >= 0).unsqueeze(1), own, older)


def flat_places(state: SlotState, slots: Tensor, places: Tensor) -> Tensor:
    """Where `places` of `slots` are stored, as `Batch.writes`."""
    return state.page_table[slots, places // state.page_size] * state.page_size + places % state.page_size


def note_pairs(state: SlotState, head: HeadSlots, wanted: Wanted, offers: PaddedDrafts | None = None) -> None:
    """What `plan_pairs` planned of the same values has been read: stops, gaps, and marks of pages that became whole.

    offers: the drafts of these rows, which are as many as they want, from the 0th source.
    """
    if offers is not None:
        offers.counts.copy_(wanted.most)
        offers.sources.zero_()
    size, slots = state.page_size, wanted.slots
    begins, counts, gaps = extent(state, head, wanted)
    stops = begins + counts
    since = (gaps[:, 1] + size - 1) // size  # the first page without a place of the gap
    column = torch.maximum(since, begins // size).unsqueeze(1) + torch.arange(
        wanted.tokens // size + 1, device=slots.device
    )
    whole = (column < (stops // size).unsqueeze(1)) & (counts > 0).unsqueeze(1)
    if not head.one_layer:
        whole &= (gaps[:, 1] == 0).unsqueeze(1)
    pages = state.page_table[slots.unsqueeze(1), column.clamp(max=state.page_table.shape[1] - 1)]
    head.marks.scatter_reduce_(0, pages.long().view(-1), whole.to(torch.uint8).view(-1), "amax")
    read = counts > 0
    head.stops[slots] = torch.where(read, stops, head.stops[slots])
    head.gaps[slots] = torch.where(read.unsqueeze(1), gaps, head.gaps[slots])


def plan_drafts(
    state: SlotState, rows: DescribedRows, drafts: PaddedDrafts, depth: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pairs of the drafts at `depth - 1`, one for each row: ids, places, writes, next_positions, all [R].

    A row that has all the drafts it may have gets a pair at FIRST that is stored in the scratch page.
    """
    newest = state.lengths[rows.slots] - 1
    going = rows.drafts > depth
    places = torch.where(going, (newest + depth).clamp(max=state.history.shape[1] - 1), FIRST)
    ids = torch.where(going, drafts.tokens[:, depth - 1], 0)
    writes = torch.where(going, flat_places(state, rows.slots, places), 0)
    return ids, places, writes, newest + depth + 1


def keep(state: SlotState, head: HeadSlots, rows: DescribedRows, batch: Batch, taps: Tensor, counts: Tensor) -> None:
    """Take the taps of the positions that stand: the newest `window` of each row into the ring, those of each page's
    last position beside the page. A page whose first position is fed anew holds nothing of the head's yet.

    The next pair to read may be that of the position before the step, so its taps are saved where they would be lost.
    batch, taps, counts: as for `PaddedDrafter.absorb`.
    """
    size = state.page_size
    stand = rows.known + (counts - 1).clamp(min=0)  # [R]
    token = torch.arange(len(batch.ids), device=taps.device)
    within = token - batch.offsets[batch.rows]
    stands = (token < batch.offsets[-1]) & (within < stand[batch.rows])
    kept = stands & (within >= stand[batch.rows] - head.window)
    spare = len(head.stops) - 1
    slots, turn = torch.where(kept, rows.slots[batch.rows], spare), batch.positions % head.window
    # Of a step that fills the ring one token comes to stand where the position before the step does.
    over = kept & (stand[batch.rows] >= head.window) & ((within + 1) % head.window == 0)
    head.before[torch.where(over, slots, spare)] = head.ring[slots, turn]
    head.ring[slots, turn] = taps
    pages, at = batch.writes // size, batch.positions % size
    head.page_taps[torch.where(stands & (at == size - 1), pages, 0)] = taps
    head.marks.scatter_reduce_(0, pages, (~stands | (at > 0)).to(torch.uint8), "amin")


def begin(state: SlotState, head: HeadSlots, slots: Tensor, computed: Tensor) -> None:
    """Slots of new requests, in the device's tables by now: all that whole marked pages hold counts as read.

    slots, computed: [A] int64. computed: leading positions that stand in shared pages. From the first of these that the
    head has not read to the last one is the slot's gap.
    """
    size = state.page_size
    pages = state.page_table[slots].long()  # [A, columns]
    columns = torch.arange(pages.shape[1], device=slots.device)
    unread = (head.marks[pages] == 0) & (columns < (computed // size).unsqueeze(1))
    front = torch.where(unread, columns, pages.shape[1]).amin(1)
    back = torch.where(unread, columns + 1, 0).amax(1)
    head.gaps[slots] = torch.where(unread.any(1).unsqueeze(1), torch.stack((front, back), dim=1) * size, 0)
    head.stops[slots] = computed.clamp(min=FIRST)
    newest = (computed - 1).clamp(min=0)
    head.oldest[slots] = newest
    last = pages.gather(1, (newest // size).unsqueeze(1)).squeeze(1)
    head.ring[slots, newest % head.window] = head.page_taps[last]


def begin_text(state: SlotState, head: HeadSlots, slots: Tensor, computed: Tensor) -> None:
    """The same for a network that reads the text alone: it reads on from the first page that it has not read."""
    size = state.page_size
    pages = state.page_table[slots].long()
    columns = torch.arange(pages.shape[1], device=slots.device)
    whole = computed // size
    unread = (head.marks[pages] == 0) & (columns < whole.unsqueeze(1))
    head.stops[slots] = torch.where(unread, columns, whole.unsqueeze(1)).amin(1) * size
    head.gaps[slots] = 0


def take_along(head: HeadSlots, kv: PagedKV, exchanges: Tensor) -> None:
    """What the head stored of slots in pages that are exchanged goes along, where the new page has nothing of it yet.

    exchanges: [5, E] int64, the fields of `Exchange`, no page twice. What cannot go along is lost to its slot: what
    another request has written over, and what depends on more than the text.
    """
    slots, columns, old, pages, owned = exchanges
    size, stops, gaps = kv.page_size, head.stops[slots], head.gaps[slots]
    begins = columns * size
    places = begins.unsqueeze(1) + torch.arange(size, device=slots.device)  # [E, size]
    hidden = (places >= gaps[:, :1]) & (places < gaps[:, 1:])
    read = (places < stops.unsqueeze(1)) & ~hidden
    lacking = head.marks[pages] == 0
    stands = (owned > 0) if head.one_layer else (owned > 0) & (gaps[:, 1] == 0)
    _copy_places(kv, old, pages, read & (lacking & stands).unsqueeze(1))
    head.marks[pages] |= (read.all(1) & stands).to(torch.uint8)
    _lose(head, slots, begins, begins + size, lacking & ~stands & (stops > begins))


def _copy_places(kv: PagedKV, sources: Tensor, targets: Tensor, places: Tensor) -> None:
    """Keys and values of some places of pages onto others. sources, targets: [E]. places: [E, page size] bool."""
    chosen = places[:, None, :, None]
    for stored in (*kv.k_pages, *kv.v_pages):
        stored[targets] = torch.where(chosen, stored[sources], stored[targets])


def _lose(head: HeadSlots, slots: Tensor, begins: Tensor, ends: Tensor, lost: Tensor) -> None:
    """As `Reading.lose`, where `lost`. All [E]; slots may repeat."""
    ends = torch.where(lost, ends, 0)
    never = torch.iinfo(torch.int64).max
    gap = torch.where(head.gaps[:, 1] > 0, head.gaps[:, 0], never)
    gap.scatter_reduce_(0, slots, torch.where(lost, begins, never), "amin")
    gap_end = head.gaps[:, 1].scatter_reduce(0, slots, ends, "amax")
    head.gaps[:, 1] = gap_end
    head.gaps[:, 0] = torch.where(gap_end > 0, gap, 0)
    head.stops.scatter_reduce_(0, slots, ends, "amax")
