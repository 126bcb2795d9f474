"""Logits processors: decode a dense model through a sparse map, or cut its distribution by entropy."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import LogitsProcessor

from ..config import MapConfig
from ..functional.arguments import check_number
from ..functional.log_zero import on_floor, sum_to_one
from ..functional.registry import NO_DISTRIBUTION
from ..model.distribution import log_distribution


class SparseLogitsProcessor(LogitsProcessor):
    """Decode a dense model through a sparse map: ``generate(logits_processor=[SparseLogitsProcessor("entmax15")])``.

    Logits become log-probabilities of the map, as with ``sparsify(model, head=...)``, but for one call of ``generate``
    and without a change to the model. A model trained with softmax was not trained for the map: its logits differ more
    than those of an entmax model, so few tokens keep probability. Perplexities need the model's own map.

    Limits. Beam search hands its processors ``log_softmax(logits)``. The entmax family is invariant to a constant
    added to all logits, so nothing changes; alpha-ReLU is not and is refused there. The refusal looks for scores whose
    exponentials sum to one, so it misses log-probabilities that another processor changed first; a row forced to one
    token tells nothing and keeps it. Temperature and truncation come later and act on the map's probabilities:
    ``temperature=T`` samples from ``p ** (1 / T)``, with the same support.

    Args:
        head: a map's name or a mapping with its settings, as for ``sparsify``; settings must be numbers.

    Raises:
        ValueError: an unknown map or setting, a map that restricts the sign or the sum of its scores, or one for
            attention only. When called:
            NaN, log-probabilities for a map that needs logits, or a model whose head is sparse already.

    >>> scores = torch.tensor([[2.0, 1.5, -1.0]])
    >>> SparseLogitsProcessor("sparsemax")(None, scores).exp()
    tensor([[0.7500, 0.2500, 0.0000]])
    """

    has_floor = True  # beam search reads it; see end_possible_strings

    def __init__(self, head: str | Mapping[str, object]) -> None:
        map_config = MapConfig.parse(head, "head")
        if map_config.open_settings:
            raise ValueError(f'{map_config.name}: {map_config.open_settings[0]} must be a number, was "auto"')
        if not map_config.map.any_scores:
            raise ValueError(
                f"{map_config.name} restricts the sign or the sum of its scores, which logits do not meet; choose "
                "another map"
            )
        if map_config.map.attention_only:
            raise ValueError(f"{map_config.name} {NO_DISTRIBUTION}; choose another map")
        self._map_config = map_config

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        """Log-probabilities (rows, V), float32, for logits or log-probabilities (rows, V).

        Tokens of probability zero get about -10,000 (exactly zero after exp), in the order of their scores.
        """
        if scores.isnan().any():
            raise ValueError("the scores hold NaN; look at the model's weights and inputs")
        # Forced tokens have the score 0 and all others -inf, which sums to one whatever the scores were before.
        unforced = scores[(scores > torch.finfo(scores.dtype).min).sum(-1) > 1]
        if len(unforced) and bool(sum_to_one(unforced).all()):
            if not self._map_config.map.shift_invariant:
                raise ValueError(
                    f"{self._map_config.name} needs the logits themselves and got log-probabilities, which have lost "
                    "an additive constant: beam search gives them to every processor. Decode without beams, or with "
                    f"sparsify(model, head={self._map_config.to_dict()}), which works in every mode"
                )
            if on_floor(unforced).any():
                raise ValueError("the model's head is sparse already; decode without a sparse logits processor")
        return log_distribution(self._map_config, scores)


class EntmaxLogitsProcessor(SparseLogitsProcessor):
    """Decode a dense model through alpha-entmax, in every mode of ``generate``; see ``SparseLogitsProcessor``.

    Args:
        alpha: from 1 to 64; 1 is softmax, 2 sparsemax.
    """

    def __init__(self, alpha: float = 1.5) -> None:
        super().__init__({"name": "entmax", "alpha": alpha})


class AlphaReluLogitsProcessor(SparseLogitsProcessor):
    """Decode a dense model through alpha-ReLU, in every mode but beam search; see ``SparseLogitsProcessor``.

    The logits of a softmax model carry an arbitrary offset, to which softmax is invariant and alpha-ReLU is not, so
    ``tau`` must be estimated from this model's logits. Weights are divided by their sum.

    Args:
        tau: threshold on ``(alpha - 1) * logits``.
        alpha: from 1.001 to 5.
    """

    def __init__(self, tau: float, alpha: float = 1.5) -> None:
        super().__init__({"name": "alpha_relu", "alpha": alpha, "tau": tau})


class TopHLogitsProcessor(LogitsProcessor):
    """Keep the largest set of likeliest tokens with ``H(q) <= alpha * H(p)``, and at least one token.

    ``q`` is ``p`` restricted to the tokens kept and divided by its sum. ``H(q)`` grows with every token added, so the
    cut is where it first exceeds the bound. The ``top_h`` of Transformers 5.24 bounds the sum of ``-p log p`` over the
    tokens kept instead, without dividing by their mass, and reads the first 100 tokens only.

    Args:
        alpha: share of the entropy of ``p``, in (0, 1].

    Raises:
        ValueError: ``alpha`` out of range, or NaN scores when called.

    Source: Baghaei Potraghloo et al. 2025, Top-H decoding, the greedy algorithm for entropy-constrained mass
    maximization.

    >>> scores = torch.tensor([[0.5, 0.25, 0.2, 0.05]]).log()
    >>> TopHLogitsProcessor(0.6)(None, scores).isfinite()
    tensor([[ True,  True, False, False]])
    """

    def __init__(self, alpha: float = 0.4) -> None:
        check_number("alpha", alpha, "in (0, 1]", lambda share: 0 < share <= 1)
        self._alpha = alpha

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        """The scores (rows, V), ``-inf`` where a token is not kept."""
        if scores.isnan().any():
            raise ValueError("the scores hold NaN; look at the model's weights and inputs")
        log_p, order = scores.double().log_softmax(-1).sort(dim=-1, descending=True, stable=True)
        mass = log_p.exp().cumsum(-1)
        # H(q) = log Z - (sum of p log p) / Z over the tokens kept, Z their mass.
        entropy = mass.log() - (log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).cumsum(-1) / mass
        within = entropy <= self._alpha * entropy[..., -1:]
        within[..., 0] = True
        return scores.masked_fill(~torch.zeros_like(within).scatter(-1, order, within), -torch.inf)
