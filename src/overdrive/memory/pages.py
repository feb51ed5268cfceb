"""The pool of KV pages: who holds which page, and which may be taken next.

Knows page numbers and reference counts. Must never know what a page holds, nor touch a device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

SCRATCH = 0
"""Never handed out: padding and positions past a request's end write there, and nothing reads it."""


class PagePool:
    """Pages `1 .. n_pages - 1`, each free, held (by one row or several) or idle.

    An idle page is held by nobody but still named by the prefix cache. Idle pages are the cache's memory and the
    pool's reserve at once: `take` uses free pages first and then the longest-idle one, telling `forget` before it is
    reused. So the cache needs no size of its own, and nothing is evicted before its memory is wanted.

    One device stream orders everything: a page released here can only be written again by a later launch, so releasing
    a page that a launched step still reads or writes is safe.
    """

    def __init__(self, n_pages: int) -> None:
        """n_pages counts the scratch page. Raises ValueError when nothing would be left."""
        if n_pages < 2:
            raise ValueError(f"a page pool needs at least 2 pages (one is the scratch page), not {n_pages}")
        self.n_pages = n_pages
        self._free = list(range(n_pages - 1, SCRATCH, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._holders = [0] * n_pages
        self._named = bytearray(n_pages)
        self.forget: Callable[[int], None] = self.unname

    @property
    def usable(self) -> int:
        """Pages there are, the scratch page not counted."""
        return self.n_pages - 1

    @property
    def available(self) -> int:
        """Pages that `take` can hand out now."""
        return len(self._free) + len(self._idle)

    @property
    def idle(self) -> int:
        """Pages kept only for the prefix cache."""
        return len(self._idle)

    def count_idle(self, pages: Iterable[int]) -> int:
        """How many of these pages are idle: holding them makes fewer available."""
        return sum(page in self._idle for page in pages)

    def take(self, n: int) -> list[int]:
        """Hand out n pages, each with one holder. The caller has checked `available`."""
        assert n <= self.available, "page pool: taken beyond what is available"
        pages = []
        for _ in range(n):
            page = self._free.pop() if self._free else self._evict_oldest()
            self._holders[page] = 1
            pages.append(page)
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add a holder to pages that are held or idle."""
        for page in pages:
            assert self._holders[page] or page in self._idle, f"page {page} is free and cannot be shared"
            if self._holders[page] == 0:
                del self._idle[page]
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Remove one holder of each page.

        The last pages of a sequence become idle first, so that a cached end is evicted before the beginning it needs.
        """
        for page in reversed(list(pages)):
            assert self._holders[page] > 0, f"page {page} released more often than held"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                if self._named[page]:
                    self._idle[page] = None
                else:
                    self._free.append(page)

    def name(self, page: int) -> None:
        """The prefix cache now names this held page."""
        assert self._holders[page] > 0
        self._named[page] = 1

    def unname(self, page: int) -> None:
        """The prefix cache forgot the page; an idle one becomes free."""
        self._named[page] = 0
        if page in self._idle:
            del self._idle[page]
            self._free.append(page)

    def _evict_oldest(self) -> int:
        page = next(iter(self._idle))
        self.forget(page)
        assert self._free, "the prefix cache kept a page it was told to forget"
        return self._free.pop()

    def check(self, held: Iterable[int]) -> None:
        """Raise AssertionError unless the holders are exactly `held`, one entry per holder. For tests and soak runs."""
        counts = [0] * self.n_pages
        for page in held:
            counts[page] += 1
        assert counts == self._holders, "page holders differ from the rows' pages"
        loose = sorted([*self._free, *self._idle, *(p for p in range(1, self.n_pages) if counts[p])])
        assert loose == list(range(1, self.n_pages)), "a page is lost or in two places"
