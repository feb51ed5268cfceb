"""How the token at a position is drawn from the target's logits: the rules, and what they need to know of each slot.

This is the specification in plain torch; faster samplers must return the same tokens. Order of the rules at every
position: penalties, logit_bias, min_tokens, grammar mask, temperature, top-k, top-p, min-p, then the argmax of
logit / temperature + keyed noise (the argmax alone at temperature 0). Ties go to the lower token id, also at the
boundary of top-k and top-p. Knows nothing of steps, plans or who wrote the drafts.

A position always yields a token. Legal logits are finite (NaN counts as the lowest), so between them the order is:
legal tokens, then stop tokens banned by min_tokens (a grammar that leaves nothing else wins over min_tokens), then
tokens outside the grammar mask, which are drawn only if the mask is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Protocol

import torch
from torch import Tensor

from overdrive.device.noise import keyed_noise
from overdrive.device.token_counts import TokenCounts
from overdrive.types import SamplingParams

LIMIT = 1e30
"""Legal logits are clamped to +-LIMIT. A stop token banned by min_tokens stands at -10 LIMIT, a masked one at -inf."""

LOWEST = -3e38
"""Least score of a token that survives the filters: a lone survivor may meet noise of -inf and must still win."""

COLDEST = 1e-6
"""Least temperature above 0; keeps LIMIT / temperature finite in float32."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What each of N logit rows is for; all [N] int64.

    rows: the row of the step (index into drafts, tokens, counts). slots: the slot of that row.
    depths: drafts of the row that precede the token to draw: 0 right after the last known token.
    positions: absolute position of the token to draw, an index into prompt + output.
    """

    rows: Tensor
    slots: Tensor
    depths: Tensor
    positions: Tensor


@dataclass(frozen=True, slots=True)
class Masks:
    """Grammar masks. bits: [M, ceil(V / 32)] int32, token t is allowed where bit t % 32 of word t // 32 is set.

    index: [N] int64, the mask of each logit row, -1 for none.
    """

    bits: Tensor
    index: Tensor


class SamplingState:
    """Sampling parameters by slot, on the device. All scalars are [slots]; `dtype` is that of the logits.

    temperature, presence, frequency, repetition: dtype. log_min_p: dtype, -inf when off. top_p: float64.
    top_k: int64, vocabulary size when off. seed: int64. logprobs: int64, alternatives to report, -1 for nothing.
    stops_from: int64, first position at which stop ids may be drawn.
    stop_ids: [slots, widest] int64, padded with -1; bias_ids and bias (dtype) likewise.
    plain: bool, slots whose every draw is the argmax of the logits as they are.
    """

    def __init__(self, slots: int, vocab_size: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        device = torch.device(device)
        self.vocab_size = vocab_size
        self.dtype = dtype
        # Packed, so that an admission is a handful of copies to the device; the names are views.
        self.reals = torch.zeros((5, slots), dtype=dtype, device=device)
        self.integers = torch.zeros((4, slots), dtype=torch.int64, device=device)
        self.temperature, self.presence, self.frequency, self.repetition, self.log_min_p = self.reals
        self.top_k, self.seed, self.stops_from, self.logprobs = self.integers
        self.top_p = torch.ones(slots, dtype=torch.float64, device=device)
        self.stop_ids = torch.full((slots, 1), -1, dtype=torch.int64, device=device)
        self.bias_ids = torch.full((slots, 1), -1, dtype=torch.int64, device=device)
        self.bias = torch.zeros((slots, 1), dtype=dtype, device=device)
        self.counts = TokenCounts(slots, vocab_size, device)
        self.plain = torch.zeros(slots, dtype=torch.bool, device=device)

    def admit(self, slot: int, params: SamplingParams, tokens: Sequence[int], prompt_len: int) -> None:
        """Give `slot` to a request. tokens: prompt and output so far (a resumed request's penalties depend on it).

        Stop ids and biases outside the vocabulary can never be drawn and are left out.
        """
        self.reals[:, slot] = torch.tensor(slot_reals(params), dtype=self.dtype)
        self.integers[:, slot] = torch.tensor(slot_integers(params, prompt_len, self.vocab_size))
        self.top_p[slot] = params.top_p
        self.plain[slot] = not (params.temperature > 0 or params.penalised or params.logit_bias or params.min_tokens)
        stops, bias = slot_lists(params, self.vocab_size)
        self.stop_ids = _set_list(self.stop_ids, slot, stops, pad=-1)
        # Both or none: where memory does not last for one, they must not come to differ in width.
        bias_ids, biases = (
            _set_list(self.bias_ids, slot, list(bias), -1),
            _set_list(self.bias, slot, list(bias.values()), 0),
        )
        self.bias_ids, self.bias = bias_ids, biases
        if params.penalised:
            self.counts.admit(slot, tokens, prompt_len)
        else:
            self.counts.forget(slot)

    def absorb(self, slots: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """Take accepted tokens into the penalties: `tokens[r, :counts[r]]` follow in `slots[r]`. [R], [R, K+1], [R]."""
        self.counts.absorb(slots, tokens, counts)


def slot_reals(params: SamplingParams) -> tuple[float, ...]:
    """A request's column of `SamplingState.reals`."""
    return (
        max(params.temperature, COLDEST) if params.temperature > 0 else 0.0,
        params.presence_penalty,
        params.frequency_penalty,
        params.repetition_penalty,
        log(params.min_p) if params.min_p > 0 else -torch.inf,
    )


def slot_integers(params: SamplingParams, prompt_len: int, vocab_size: int) -> tuple[int, ...]:
    """A request's column of `SamplingState.integers`."""
    return (
        params.top_k if 0 < params.top_k < vocab_size else vocab_size,
        (params.seed + 2**63) % 2**64 - 2**63,  # any integer is a seed: its low 64 bits
        prompt_len + params.min_tokens,
        params.logprobs,
    )


def slot_lists(params: SamplingParams, vocab_size: int) -> tuple[list[int], dict[int, float]]:
    """A request's stop ids, ascending, and its biases by id: those within the vocabulary."""
    stops = sorted(token for token in set(params.stop_token_ids) if 0 <= token < vocab_size)
    return stops, {token: value for token, value in params.logit_bias if 0 <= token < vocab_size}


class Sampler(Protocol):
    """Draws one token per logit row; `sample` below is the reference."""

    def __call__(
        self, logits: Tensor, layout: Layout, drafts: Tensor, state: SamplingState, masks: Masks | None = None
    ) -> Tensor:
        """logits: [N, V]. drafts: [R, K] int64, of which only `drafts[r, :depth]` matter. Returns [N] int64."""
        ...


def sample(logits: Tensor, layout: Layout, drafts: Tensor, state: SamplingState, masks: Masks | None = None) -> Tensor:
    """The token each logit row draws, by the rules above. Shapes as in `Sampler`; the logits are not changed."""
    adjusted = adjust(logits, layout, drafts, state, masks)
    hot = (state.temperature[layout.slots] > 0).nonzero().squeeze(1)  # [H]
    if len(hot):
        adjusted[hot] = _scores(adjusted[hot], layout.slots[hot], layout.positions[hot], state)
    return adjusted.argmax(dim=1)  # torch returns the first of equals


def finite(logits: Tensor) -> Tensor:
    """A copy in which NaN is the lowest logit and infinities are the limits, so that no row is without a winner."""
    return torch.nan_to_num(logits, nan=-LIMIT).clamp_(-LIMIT, LIMIT)


def adjust(logits: Tensor, layout: Layout, drafts: Tensor, state: SamplingState, masks: Masks | None = None) -> Tensor:
    """Logits [N, V] after penalties, logit_bias, min_tokens and grammar mask: a new tensor in the state's dtype."""
    x = finite(logits.to(state.dtype))
    _penalise(x, layout, drafts, state)
    bias_ids = state.bias_ids[layout.slots]  # [N, B]
    x.scatter_add_(1, bias_ids.clamp(min=0), state.bias[layout.slots])  # padding adds 0 to token 0
    x.clamp_(-LIMIT, LIMIT)
    stop_ids = state.stop_ids[layout.slots]  # [N, S]
    early = (layout.positions < state.stops_from[layout.slots]).unsqueeze(1)
    at, which = ((stop_ids >= 0) & early).nonzero(as_tuple=True)
    x[at, stop_ids[at, which]] = -10 * LIMIT
    if masks is not None:
        x.masked_fill_(~_allowed(masks, x.shape[1]), -torch.inf)
    return x


def _penalise(x: Tensor, layout: Layout, drafts: Tensor, state: SamplingState) -> None:
    """Penalties in place. Each logit row counts the output so far and its own row's drafts up to its depth."""
    at = (state.counts.entry[layout.slots] >= 0).nonzero().squeeze(1)  # [P] logit rows with penalties
    if not len(at):
        return
    slots, width = layout.slots[at], drafts.shape[1]
    entries = state.counts.entry[slots]
    counts = state.counts.output[entries]  # [P, V], a copy
    before = torch.arange(width, device=x.device) < layout.depths[at].unsqueeze(1)  # [P, K]
    counts.scatter_add_(1, drafts[layout.rows[at]].clamp(0, x.shape[1] - 1), before.to(torch.int32))
    y = x[at]
    repetition = state.repetition[slots].unsqueeze(1)
    seen = state.counts.prompt[entries] | (counts > 0)
    y = torch.where(seen, torch.where(y > 0, y / repetition, y * repetition), y)
    y -= state.frequency[slots].unsqueeze(1) * counts
    y -= state.presence[slots].unsqueeze(1) * (counts > 0)
    x[at] = y


def _allowed(masks: Masks, vocab_size: int) -> Tensor:
    """[N, V] bool."""
    ids = torch.arange(vocab_size, device=masks.bits.device)
    words = masks.bits[masks.index.clamp(min=0)][:, ids >> 5]  # [N, V]
    return ((words >> (ids & 31)) & 1).bool() | (masks.index < 0).unsqueeze(1)


def _scores(adjusted: Tensor, slots: Tensor, positions: Tensor, state: SamplingState) -> Tensor:
    """Logit / temperature + noise for tokens that survive the filters, -inf for others. All rows are hot. [H, V]."""
    x = adjusted / state.temperature[slots].unsqueeze(1)
    kept = _filter(x, slots, state) & (x > -torch.inf)
    ids = torch.arange(x.shape[1], device=x.device)
    noise = keyed_noise(state.seed[slots].unsqueeze(1), positions.unsqueeze(1), ids, x.dtype)
    return (x + noise).clamp(min=LOWEST).masked_fill(~kept, -torch.inf)


def _filter(x: Tensor, slots: Tensor, state: SamplingState) -> Tensor:
    """Which tokens survive top-k, then top-p over those, then min-p. x: [H, V] logits over temperature. Bool [H, V].

    top-p keeps a token while the mass of those before it, as a share of the mass that top-k left, is below p.
    """
    best = x.max(dim=1, keepdim=True).values
    kept = x >= best + state.log_min_p[slots].unsqueeze(1)
    at = ((state.top_k[slots] < x.shape[1]) | (state.top_p[slots] < 1)).nonzero().squeeze(1)
    if not len(at):
        return kept
    ordered, ids = x[at].sort(dim=1, descending=True, stable=True)
    ranks = torch.arange(x.shape[1], device=x.device)
    in_k = ranks < state.top_k[slots[at]].unsqueeze(1)
    mass = (ordered.double() - best[at].double()).exp().masked_fill(~in_k | (ordered == -torch.inf), 0)
    total = mass.cumsum(dim=1)
    bound = state.top_p[slots[at]].unsqueeze(1) * total[:, -1:]
    before = torch.nn.functional.pad(total[:, :-1], (1, 0))
    in_p = (before < bound) | (ranks == 0) | (state.top_p[slots[at]] >= 1).unsqueeze(1)
    kept[at] &= torch.zeros_like(in_k).scatter(1, ids, in_k & in_p)
    return kept


def _set_list(table: Tensor, slot: int, values: list, pad: int) -> Tensor:
    """Write `values` into the slot's line of a padded [slots, width] table, widening it by doubling where needed."""
    width = table.shape[1]
    while width < len(values):
        width *= 2
    if width > table.shape[1]:
        table = torch.nn.functional.pad(table, (0, width - table.shape[1]), value=pad)
    table[slot] = torch.tensor(values + [pad] * (width - len(values)), dtype=table.dtype)
    return table
