"""The logarithm that eps-perplexity charges, beside the loss of a sparse head in the second half of the training."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import hf_sparse


def eps_losses(p: Tensor, targets: Tensor, uniform: float) -> Tensor:
    """Minus the logarithm of ``(1 - uniform) p + uniform / V``; the exponential of its mean is eps-perplexity.

    Args:
        p: (..., V) probabilities.
        targets: (...) class indices.
        uniform: share of the uniform distribution, in (0, 1).

    Returns:
        (...) nats. Targets of probability zero have no gradient.

    Source: eps-perplexity of Martins, Marinho and Martins 2020, Sparse Text Generation.
    """
    of_targets = p.gather(-1, targets[..., None])[..., 0]
    return -((1 - uniform) * of_targets + uniform / p.shape[-1]).log()


class LikelihoodTrainer(hf_sparse.SparseSeq2SeqTrainer):
    """A trainer that adds the mean of ``eps_losses`` to the loss once half of the steps are done.

    Args:
        weight: of that logarithm.
        uniform: see ``eps_losses``.
    """

    def __init__(self, *args: Any, weight: float, uniform: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.weight, self.uniform = weight, uniform

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any) -> Any:
        """The loss of the head's map, and what is added to it."""
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if model.training and 2 * self.state.global_step >= self.state.max_steps:
            p = hf_sparse.probabilities(model, outputs.logits[:, :-1])
            loss = loss + self.weight * eps_losses(p, inputs["labels"][:, 1:], self.uniform).mean()
        return (loss, outputs) if return_outputs else loss
