"""Logits processors that make a dense model decode through a sparse map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from ..config import MapConfig
from ..model.distribution import OFF_SUPPORT, log_distribution


class SparseLogitsProcessor(LogitsProcessor):
    """Decode a dense model through a sparse map: ``generate(logits_processor=[SparseLogitsProcessor("entmax15")])``.

    It turns logits into log-probabilities of the map, as ``sparsify(model, head=...)`` would, but for one call of
    ``generate`` and without touching the model. A model trained with softmax was not trained for the map: its logits
    differ more than those of an entmax model, so that few tokens keep probability. Perplexities need the model's own
    map.

    Limits. Beam search hands its processors ``log_softmax(logits)``. That is fine for maps that do not care about a
    constant added to all logits, those of the entmax family; alpha-ReLU does, needs the logits themselves, and is
    refused there. The refusal looks for scores whose exponentials sum to one, so it cannot see log-probabilities that
    another processor changed first. Temperature and truncation come after and act on the map's probabilities:
    ``temperature=T`` samples from ``p ** (1 / T)``, with the same support.

    Args:
        head: a map's name or a mapping with its settings, as for ``sparsify``; settings must be numbers.

    Raises:
        ValueError: an unknown map or setting, or a map that does not take scores of any sign. When called: NaN,
            log-probabilities for a map that needs logits, or a model whose head is sparse already.

    >>> scores = torch.tensor([[2.0, 1.5, -1.0]])
    >>> SparseLogitsProcessor("sparsemax")(None, scores).exp()
    tensor([[0.7500, 0.2500, 0.0000]])
    """

    def __init__(self, head: str | Mapping[str, Any]) -> None:
        self._choice = MapConfig.parse(head, "head")
        if self._choice.open_settings:
            raise ValueError(f'{self._choice.name}: {self._choice.open_settings[0]} must be a number, was "auto"')
        if not self._choice.map.any_scores:
            raise ValueError(f"{self._choice.name} does not take scores of any sign, which logits have")

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        """Log-probabilities (rows, V), float32, for logits or log-probabilities (rows, V).

        Tokens without probability get about -10,000 (exactly zero after exp), in the order of their scores.
        """
        if scores.isnan().any():
            raise ValueError("the scores hold NaN")
        total = scores.logsumexp(-1)
        if (total.abs() < 1e-3).all():
            if not self._choice.map.shift_invariant:
                raise ValueError(
                    f"{self._choice.name} needs the logits themselves and got log-probabilities, from which a "
                    "constant is missing: beam search gives them to every processor. Decode without beams, or with "
                    f"sparsify(model, head={self._choice.to_dict()}), which works in every mode"
                )
            if ((scores < OFF_SUPPORT / 2) & (scores > 2 * OFF_SUPPORT)).any():
                raise ValueError("the model's head is sparse already; decode without a sparse logits processor")
        return log_distribution(self._choice, scores)


class EntmaxLogitsProcessor(SparseLogitsProcessor):
    """Decode a dense model through alpha-entmax, in every mode of ``generate``; see ``SparseLogitsProcessor``.

    Args:
        alpha: at least 1; 1 is softmax, 2 sparsemax.
    """

    def __init__(self, alpha: float = 1.5) -> None:
        super().__init__({"name": "entmax", "alpha": alpha})


class AlphaReluLogitsProcessor(SparseLogitsProcessor):
    """Decode a dense model through alpha-ReLU, in every mode but beam search; see ``SparseLogitsProcessor``.

    The logits of a softmax model carry an offset that training never saw and alpha-ReLU sees, so ``tau`` must be
    estimated from this model's logits; weights are divided by their sum.

    Args:
        tau: threshold on ``(alpha - 1) * logits``.
        alpha: above 1.
    """

    def __init__(self, tau: float, alpha: float = 1.5) -> None:
        super().__init__({"name": "alpha_relu", "alpha": alpha, "tau": tau})


class TopHLogitsProcessor(LogitsProcessor):
    """Keep the likeliest tokens whose distribution has at most a given share of the entropy of all.

    With tokens sorted by probability, the most are kept for which ``H(q) <= alpha * H(p)``, where ``q`` is ``p``
    restricted to them and divided by its sum; at least one is. ``H(q)`` grows with every token added, so the first
    one too many decides. The ``top_h`` of Transformers 5.23 bounds the sum of ``-p log p`` of the tokens kept instead,
    without dividing by their sum, and looks at the first 100 tokens only.

    Args:
        alpha: share of the entropy, in (0, 1].

    Raises:
        ValueError: ``alpha`` out of range, or NaN scores when called.

    Source: Baghaei Potraghloo et al. 2025, Top-H decoding, the greedy algorithm for entropy-constrained mass
    maximization.

    >>> scores = torch.tensor([[0.5, 0.25, 0.2, 0.05]]).log()
    >>> TopHLogitsProcessor(0.6)(None, scores).isfinite()
    tensor([[ True,  True, False, False]])
    """

    def __init__(self, alpha: float = 0.4) -> None:
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha must be in (0, 1], was {alpha}")
        self._alpha = alpha

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        """The scores (rows, V), ``-inf`` where a token is not kept."""
        if scores.isnan().any():
            raise ValueError("the scores hold NaN")
        log_p, order = scores.double().log_softmax(-1).sort(dim=-1, descending=True, stable=True)
        mass = log_p.exp().cumsum(-1)
        # H(q) = log Z - (sum of p log p) / Z over the tokens kept, Z their mass.
        entropy = mass.log() - (log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).cumsum(-1) / mass
        within = entropy <= self._alpha * entropy[..., -1:]
        within[..., 0] = True
        return scores.masked_fill(~torch.zeros_like(within).scatter(-1, order, within), -torch.inf)
