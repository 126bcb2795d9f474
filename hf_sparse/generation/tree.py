"""Hypotheses as one tree: a common beginning is written once, and a run of tokens without a choice as one branch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from operator import index

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..functional.arguments import check_number, check_type
from .labels import percent, token_labels


@dataclass(frozen=True)
class Branch:
    """Hypotheses with a common beginning.

    Attributes:
        tokens: the tokens they share after those of the parent: a run without a choice. Empty at the root if the
            hypotheses differ from the start.
        probability: of all of them together.
        children: the ways they continue, likeliest first; none where they end.
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


MOST_ROUNDING = 1e-3  # what a sum of many probabilities in float32 may be above 1


def hypothesis_tree(sequences: Sequence[Sequence[int]], probabilities: Sequence[float] | Tensor) -> Branch:
    """The tree of several hypotheses.

    Args:
        sequences: token ids of each hypothesis, with the end token, as in ``SupportSet.sequences``.
        probabilities: one per hypothesis, in a list or a tensor. If a search left hypotheses out, the probability of a
            branch is that of the hypotheses given: a lower bound.

    Returns:
        The root.

    Raises:
        TypeError: no lists, tokens that are not whole numbers, or a probability that is no number.
        ValueError: no hypotheses, a probability outside [0, 1], another number of probabilities, a sum above 1, or a
            hypothesis that is the beginning of another.

    Source: Peters et al. 2019, Figure 1.

    >>> tree = hypothesis_tree([[5, 7, 2], [5, 8, 9, 2]], [0.75, 0.25])
    >>> tree.tokens, [(branch.tokens, branch.probability) for branch in tree.children]
    ((5,), [((7, 2), 0.75), ((8, 9, 2), 0.25)])
    """
    if not isinstance(sequences, Sized) or not isinstance(probabilities, Sized):
        raise TypeError(f"a tree needs lists of sequences and probabilities, was {sequences!r}, {probabilities!r}")
    if isinstance(probabilities, Tensor):
        probabilities = probabilities.tolist()
    for probability in probabilities:
        check_number("a probability", probability, "in [0, 1]", lambda p: 0 <= p <= 1 + MOST_ROUNDING)
    if len(sequences) == 0 or len(sequences) != len(probabilities):
        raise ValueError(
            "a tree needs at least one hypothesis, and a probability for each; "
            f"there were {len(sequences)} hypotheses and {len(probabilities)} probabilities"
        )
    if sum(probabilities) > 1 + MOST_ROUNDING:
        raise ValueError(f"probabilities must sum to 1 at most, summed to {sum(probabilities):g}")
    strings = sorted((tuple(map(index, ids)), p) for ids, p in zip(sequences, probabilities))
    for (one, _), (other, _) in itertools.pairwise(strings):
        if other[: len(one)] == one:
            raise ValueError(f"hypothesis {list(one)} is the beginning of {list(other)}: it needs an end token")
    return _subtree(strings)


def _subtree(strings: list[tuple[tuple[int, ...], float]]) -> Branch:
    """The tree of sorted strings, each with its probability."""
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
    children = sorted(map(_subtree, groups.values()), key=lambda branch: -branch.probability)
    return Branch(first[:shared], mass, tuple(children))


def tree_text(tree: Branch, tokenizer: PreTrainedTokenizerBase | None = None) -> str:
    """The tree as text: one line per branch, with the probability of all hypotheses through it.

    Args:
        tree: from ``hypothesis_tree``.
        tokenizer: writes tokens as text; None for their ids.

    Raises:
        TypeError: no tree.

    >>> print(tree_text(hypothesis_tree([[5, 7, 2], [5, 8, 9, 2]], [0.75, 0.25])))
    100.00%  5
     75.00%  ├─ 7 2
     25.00%  └─ 8 9 2
    """
    check_type("tree", tree, Branch, "hypothesis_tree")
    lines: list[str] = []

    def write(branch: Branch, own: str, below: str) -> None:
        run = " ".join(token_labels(branch.tokens, tokenizer)) or "(start)"
        lines.append(f"{percent(branch.probability):>7}  {own}{run}")
        for child in branch.children:
            last = child is branch.children[-1]
            write(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))

    write(tree, "", "")
    return "\n".join(lines)
