"""All hypotheses as one tree: what they share is written once, and so is what follows without a choice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ._token_labels import percent, token_labels


@dataclass(frozen=True)
class Branch:
    """Hypotheses with a common beginning.

    Attributes:
        tokens: what they have in common after their parent's tokens: a run of tokens between which there is no
            choice. Empty at the root if the hypotheses differ from the start.
        probability: of all of them together.
        children: how they go on, likeliest first; none where they end.
    """

    tokens: tuple[int, ...]
    probability: float
    children: tuple[Branch, ...] = ()

    @property
    def leaves(self) -> int:
        """Number of hypotheses."""
        return sum(child.leaves for child in self.children) or 1

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Branch]]:
        """Every branch with its depth, parents before children, likeliest first."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)


def hypothesis_tree(sequences: Sequence[Sequence[int]], probabilities: Sequence[float]) -> Branch:
    """The tree of several hypotheses.

    Args:
        sequences: token ids of each, with the end token, as in ``SupportSet.sequences``.
        probabilities: theirs. Where a search left hypotheses out, a branch has the probability of those given: a lower
            bound of its own.

    Returns:
        The root.

    Raises:
        ValueError: no hypotheses, not as many probabilities, or a hypothesis that is the beginning of another one.

    Source: Peters et al. 2019, Figure 1.

    >>> tree = hypothesis_tree([[5, 7, 2], [5, 8, 9, 2]], [0.75, 0.25])
    >>> tree.tokens, [(branch.tokens, branch.probability) for branch in tree.children]
    ((5,), [((7, 2), 0.75), ((8, 9, 2), 0.25)])
    """
    if len(sequences) == 0 or len(sequences) != len(probabilities):
        raise ValueError(
            "a tree needs at least one hypothesis, and a probability for each; "
            f"there were {len(sequences)} hypotheses and {len(probabilities)} probabilities"
        )
    strings = sorted((tuple(ids), p) for ids, p in zip(sequences, probabilities))
    for (one, _), (other, _) in itertools.pairwise(strings):
        if other[: len(one)] == one:
            raise ValueError(f"hypothesis {list(one)} is the beginning of {list(other)}: it needs an end token")
    return _branch(strings)


def _branch(strings: list[tuple[tuple[int, ...], float]]) -> Branch:
    mass = sum(p for _, p in strings)
    first = strings[0][0]
    if len(strings) == 1:
        return Branch(first, mass)
    shared = 0
    while all(ids[shared] == first[shared] for ids, _ in strings):
        shared += 1
    groups: dict[int, list[tuple[tuple[int, ...], float]]] = {}
    for ids, p in strings:
        groups.setdefault(ids[shared], []).append((ids[shared:], p))
    children = sorted(map(_branch, groups.values()), key=lambda branch: -branch.probability)
    return Branch(first[:shared], mass, tuple(children))


def tree_text(tree: Branch, tokenizer: Any = None) -> str:
    """The tree as text: a line a branch, with the probability of all hypotheses through it.

    Args:
        tree: from ``hypothesis_tree``.
        tokenizer: writes tokens as text; None for their ids.

    >>> print(tree_text(hypothesis_tree([[5, 7, 2], [5, 8, 9, 2]], [0.75, 0.25])))
    100.00%  5
     75.00%  ├─ 7 2
     25.00%  └─ 8 9 2
    """
    lines: list[str] = []

    def write(branch: Branch, own: str, below: str) -> None:
        run = " ".join(token_labels(branch.tokens, tokenizer)) or "(start)"
        lines.append(f"{percent(branch.probability):>7}  {own}{run}")
        for child in branch.children:
            last = child is branch.children[-1]
            write(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))

    write(tree, "", "")
    return "\n".join(lines)
