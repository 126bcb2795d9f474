"""All strings of nonzero probability under a sparse model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ...functional.arguments import check_count
from ...model.find import is_sparse, sparse_config
from ..inputs import check_one_sentence
from .exact_search import exact_search
from .result import SearchResult

# Prefixes expanded in one forward pass: more are no faster.
WIDTH = 128


@dataclass(frozen=True)
class SupportSet:
    """The strings of nonzero probability for one input.

    Attributes:
        sequences: token ids of each finished string, without start token, with the end token; likeliest first.
        probabilities: of ``sequences``, in the same order.
        complete: whether nothing of nonzero probability (or, with a ``min_probability``, nothing that likely) was left
            out. If not, the set is larger than the budget, and ``mass`` is the probability found.
        left_mass: the probability of everything left out; exactly 0 if nothing of nonzero probability was.
    """

    sequences: list[list[int]]
    probabilities: list[float]
    complete: bool
    left_mass: float

    @property
    def mass(self) -> float:
        """Total probability found; with ``left_mass`` it sums to 1 up to rounding."""
        return sum(self.probabilities)


def enumerate_support(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    max_hypotheses: int = 1000,
    max_new_tokens: int = 64,
    min_probability: float = 0.0,
    *,
    constrained: bool = False,
    **generate_options: Any,
) -> SupportSet:
    """Every string to which ``model`` gives nonzero probability, by exhaustive search of its sparse lattice.

    The model's own distribution is enumerated: constraints of the generation config do not apply, unless asked for.
    One is the language that mBART and M2M-100 write first (``forced_bos_token_id``); ``constrained=True`` keeps it.

    ``complete`` is a fact about the strings, not about the search: it is true if and only if at most
    ``max_hypotheses`` strings have nonzero probability and none has more than ``max_new_tokens`` tokens. But float32
    scores decide which tokens have nonzero probability. A token whose score is at the threshold up to rounding has
    probability 0 on one machine and 1e-13 (entmax15) or 1e-7 (sparsemax) on another, and may be followed by more
    strings than the budget holds, or by one that does not end. Then ``complete`` differs, and ``left_mass`` shows how
    little is at stake. With a ``min_probability`` well above rounding such strings do not count.

    Args:
        model: a model with a sparse head; any head with a ``min_probability`` above 0. It runs in evaluation mode.
        inputs: keyword inputs of ``model.generate`` for one sentence, (1, length) tensors.
        max_hypotheses: most strings kept, finished or not; beyond it the least likely are dropped.
        max_new_tokens: longest string, in tokens.
        min_probability: strings less likely than this are left out.
        constrained: whether the constraints of the generation config, and of ``generate_options``, take strings away;
            they leave the probabilities of the others.
        **generate_options: for ``model.generate``: ``language`` and ``task`` of a speech model, ``use_cache``, ...

    Returns:
        A ``SupportSet``.

    Raises:
        TypeError: ``inputs`` is not a mapping to tensors.
        ValueError: a dense head and no ``min_probability``, more than one sentence, no end token, a budget below 1, or
            a constraint among the options without ``constrained=True``.

    Cost: that of ``exact_search``: one token's forward pass for each prefix of nonzero probability.
    """
    check_one_sentence(inputs)
    dense = not is_sparse(model) or sparse_config(model).head is None
    if dense and min_probability == 0:
        raise ValueError(
            "the model's head is dense: every string has nonzero probability; sparsify(model, head=...), or give a "
            "min_probability above 0"
        )
    check_count("max_hypotheses", max_hypotheses)
    check_count("max_new_tokens", max_new_tokens)
    if not constrained:
        check_unconstrained(generate_options)
    (found,) = exact_search(
        model,
        inputs,
        num_hypotheses=max_hypotheses + 1,  # one more shows whether there are more
        max_new_tokens=max_new_tokens,
        min_probability=min_probability,
        width=WIDTH,
        max_open=max_hypotheses,
        max_expanded=max_hypotheses * max_new_tokens,
        constrained=constrained,
        **generate_options,
    )
    return _support_set(found, max_hypotheses, min_probability)


def _support_set(found: SearchResult, max_hypotheses: int, min_probability: float) -> SupportSet:
    """The first ``max_hypotheses`` strings of a search for one more."""
    kept = found.hypotheses[:max_hypotheses]
    probabilities = [hypothesis.probability for hypothesis in kept]
    all_kept = len(kept) == len(found.hypotheses)
    least = math.log(min_probability) if min_probability else -math.inf
    if found.exhausted and all_kept and not min_probability:
        left_mass = 0.0
    else:
        left_mass = found.left_mass + max(found.finished_mass - sum(probabilities), 0.0)
    return SupportSet(
        sequences=[hypothesis.tokens for hypothesis in kept],
        probabilities=probabilities,
        complete=all_kept and (found.exhausted or found.log_bound < least),
        left_mass=left_mass,
    )


def check_unconstrained(generate_options: Mapping[str, object]) -> None:
    """Refuse options that act through the constraints, which are left out.

    Raises:
        ValueError: one of them is given.
    """
    free = [name for name in vars(GenerationConfig()) if name.endswith("_token_id") and not name.startswith("forced_")]
    settings = {*vars(GenerationConfig()), "logits_processor", "prefix_allowed_tokens_fn"} - {*free, "use_cache"}
    given = sorted(settings & set(generate_options))
    if given:
        raise ValueError(
            f"{', '.join(given)}: options of generate do not count here; pass constrained=True to have these, and "
            "those of the generation config"
        )
