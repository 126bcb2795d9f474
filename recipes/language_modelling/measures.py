"""Ways to decode, and measures of the distributions that are drawn from and of the text that is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_sparse.metrics import eps_perplexity, jensen_shannon, sparsemax_score, support_size

from .likelihood import eps_losses


class Decoding(NamedTuple):
    """A way to draw the next token: from all of a distribution, or from a part of it.

    Attributes:
        top_k: keep the k likeliest classes; 0 keeps all. 1 is greedy.
        top_p: keep the fewest classes whose probabilities reach this sum; 1 keeps all.
    """

    top_k: int = 0
    top_p: float = 1.0

    def of(self, p: Tensor) -> Tensor:
        """The truncated and renormalized distribution, (..., V) like ``p``."""
        likeliest, order = p.sort(dim=-1, descending=True)
        if self.top_k:
            likeliest = likeliest * (torch.arange(p.shape[-1], device=p.device) < self.top_k)
        if self.top_p < 1:
            likeliest = likeliest * (likeliest.cumsum(-1) - likeliest < self.top_p)
        kept = torch.zeros_like(p).scatter(-1, order, likeliest)
        return kept / kept.sum(-1, keepdim=True)

    def arguments(self) -> dict[str, Any]:
        """Arguments of ``generate``."""
        if self.top_k == 1:
            return {"do_sample": False}
        return {"do_sample": True, "top_k": self.top_k, "top_p": self.top_p}


DENSE = {
    "sampling": Decoding(),
    "greedy": Decoding(top_k=1),
    "top-k 10": Decoding(top_k=10),
    "nucleus 0.9": Decoding(top_p=0.9),
}
SPARSE = {"sampling": Decoding()}
# Where the bins of a token's count in the training text begin.
COUNTS = (0, 20, 200, 1000)


def fit(p: Tensor, x: Tensor, uniform: float) -> dict[str, float]:
    """Sums over tokens of the measures of fit.

    Args:
        p: (N, V), the distributions that are drawn from.
        x: (N,), observed classes.
        uniform: share of the uniform distribution in the eps-perplexity.

    Returns:
        ``eps_loss``, the log of the eps-perplexity (nats); ``loss``, ``-log p_x`` (nats), infinite if a token has
        probability 0; ``sparsemax_score``; ``jensen_shannon`` (nats); ``missed``, tokens of probability 0;
        ``accuracy`` of the likeliest class; ``support``.

    Source: Martins et al. 2020, Sparse Text Generation (eps-perplexity, sparsemax score, Jensen-Shannon divergence).
    """
    gold = p.gather(-1, x[:, None])
    return {
        "eps_loss": float(eps_perplexity(p, x, uniform_share=uniform).log()) * len(x),
        "loss": float(-gold.log().sum()),
        "sparsemax_score": float(sparsemax_score(p, x, reduction="none").sum()),
        "jensen_shannon": float(jensen_shannon(p, x, reduction="none").sum()),
        "missed": float((gold == 0).sum()),
        "accuracy": float((p.argmax(-1) == x).sum()),
        "support": float(support_size(p).sum()),
    }


def by_count(p: Tensor, x: Tensor, uniform: float, counts: Tensor) -> Tensor:
    """What eps-perplexity charges for rare and for frequent tokens.

    Args:
        p: (N, V), the distributions that are drawn from.
        x: (N,), observed classes.
        uniform: see ``fit``.
        counts: (V,), how often each class is in the training text.

    Returns:
        (bins, 3) float64, a bin from each of ``COUNTS``: the number of tokens, the sum of their ``eps_loss`` (nats),
        and how many have probability 0.
    """
    charged, missed = eps_losses(p.double(), x, uniform), p.gather(-1, x[:, None])[:, 0] == 0
    bins = torch.bucketize(counts[x], torch.tensor(COUNTS), right=True) - 1
    told = torch.stack([torch.ones_like(charged), charged, missed.double()], 1)
    return torch.zeros(len(COUNTS), 3, dtype=torch.float64).index_add_(0, bins, told)


def repetitions(drawn: Tensor, text: Tensor, span: int) -> tuple[int, int]:
    """Number of drawn tokens that repeat one of the ``span`` tokens before them, and of those that do so wrongly.

    Args:
        drawn: (rows, length), a token drawn at each place of the text, given the text before it.
        text: (rows, length), the reference.
        span: number of tokens before, in the reference.

    Returns:
        REP and wREP in tokens: repetitions, and repetitions that differ from the reference.

    Source: Welleck et al. 2020, Neural Text Generation with Unlikelihood Training; Martins et al. 2020, Section 4.
    """
    repeated = torch.zeros_like(drawn, dtype=torch.bool)
    for back in range(1, min(span, text.shape[1] - 1) + 1):
        repeated[:, back:] |= drawn[:, back:] == text[:, :-back]
    return int(repeated.sum()), int((repeated & (drawn != text)).sum())


def distinct(texts: Sequence[Sequence[int]], n: int) -> float:
    """Share of distinct n-grams among the n-grams of a text, averaged over texts.

    Source: Li et al. 2016, A Diversity-Promoting Objective Function.

    Args:
        texts: token ids; texts shorter than n are left out.
        n: length of the n-grams.

    Raises:
        ValueError: all texts are shorter than n.

    >>> distinct([[1, 2, 1, 2, 1]], 2)
    0.5
    """
    shares = []
    for text in texts:
        grams = [tuple(text[start : start + n]) for start in range(len(text) - n + 1)]
        if grams:
            shares.append(len(set(grams)) / len(grams))
    if not shares:
        raise ValueError(f"no text has {n} tokens")
    return sum(shares) / len(shares)
