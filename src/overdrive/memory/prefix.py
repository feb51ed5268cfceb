"""The prefix cache: a radix tree over full pages, shared between requests and turns.

Knows token ids and page numbers. A page's key is every token from the sequence's start to the page's end, so equal keys
mean equal KV. Must never know requests, rows or devices.
"""

from __future__ import annotations

from collections.abc import Sequence

from overdrive.memory.pages import PagePool


class _Node:
    __slots__ = ("children", "page", "parent", "tokens")

    def __init__(self, page: int, parent: _Node | None, tokens: tuple[int, ...]) -> None:
        self.page = page
        self.parent = parent
        self.tokens = tokens
        self.children: dict[tuple[int, ...], _Node] = {}


class PrefixCache:
    """Names full pages by their tokens. Pages that nobody holds stay until the pool needs them.

    A row that holds a page holds every page before it (`match` and `donate` keep this true), so an idle page has only
    idle pages below it, and those are older: eviction from the pool's oldest end takes leaves first.
    """

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self.page_size = page_size
        self._pool = pool
        self._root = _Node(0, None, ())
        self._nodes: dict[int, _Node] = {}
        self.hit_tokens = 0
        pool.forget = self._forget

    def __len__(self) -> int:
        return len(self._nodes)

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Pages of the longest cached beginning of `tokens`, leaving at least one token to compute.

        Takes no hold: call `hold` with the result when the request is admitted.
        """
        pages, node, size = [], self._root, self.page_size
        for end in range(size, len(tokens), size):
            child = node.children.get(tuple(tokens[end - size : end]))
            if child is None:
                break
            pages.append(child.page)
            node = child
        return pages

    def hold(self, pages: Sequence[int]) -> None:
        """Hold matched pages for a row."""
        self._pool.share(pages)
        self.hit_tokens += len(pages) * self.page_size

    def donate(self, tokens: Sequence[int], pages: list[int], first: int, end: int) -> list[int]:
        """Name pages `first .. end - 1` of a row by their tokens; returns the indices whose page was exchanged.

        pages: the row's pages, all of `pages[:first]` donated before; changed in place. Where another row has already
        donated the same tokens, this row takes over that page and releases its own, which saves the memory and keeps
        the row's pages one path of the tree.
        """
        exchanged, size = [], self.page_size
        node = self._nodes[pages[first - 1]] if first else self._root
        for i in range(first, end):
            key = tuple(tokens[i * size : (i + 1) * size])
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = self._nodes[pages[i]] = _Node(pages[i], node, key)
                self._pool.name(pages[i])
            elif child.page != pages[i]:
                self._pool.share([child.page])
                self._pool.release([pages[i]])
                pages[i] = child.page
                exchanged.append(i)
            node = child
        return exchanged

    def _forget(self, page: int) -> None:
        """Drop an idle page and whatever hangs below it (idle as well: see the class)."""
        node = self._nodes[page]
        assert node.parent is not None
        del node.parent.children[node.tokens]
        below = [node]
        while below:
            gone = below.pop()
            below.extend(gone.children.values())
            del self._nodes[gone.page]
            self._pool.unname(gone.page)

    def clear(self) -> None:
        """Forget everything, for a device whose KV was lost; held pages lose only their names."""
        for child in list(self._root.children.values()):
            self._forget(child.page)
