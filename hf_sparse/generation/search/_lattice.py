"""The lattice of all strings: the log-probabilities of every continuation of some prefixes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.utils import ModelOutput

from ...cache_name import CACHE, OLD_NAME, cache_in
from ...functional.log_zero import without_floor
from ...functional.rows import upcast
from ._constraints import Constraints, check_sums
from ._membership import Membership
from ._prefix_tree import PrefixCache, PrefixTree, check_shareable


class Lattice:
    """Continuations of prefixes of several sentences, computed with a cache that all prefixes share.

    Args:
        model: a model with ``generate``.
        input_ids: (B, length) prompts, or the decoder's start tokens.
        constraints: applied to log-probabilities, as in beam search.
        model_kwargs: the model's keyword arguments as ``generate`` prepared them, one row per sentence.
        max_length: number of tokens of the longest prefix.
        membership: leaves the prefixes of members of a language; None for all strings.

    Attributes:
        num_passes: number of forward passes so far.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        constraints: Constraints,
        model_kwargs: dict[str, object],
        max_length: int,
        membership: Membership | None = None,
    ) -> None:
        self._model = model
        self._prompts = input_ids
        self._constraints = constraints
        self._membership = membership
        self.num_passes = 0
        self._tree = PrefixTree(max_length)
        self._cache: PrefixCache | None = None
        self._kwargs = [model_kwargs]  # for prefixes of 0, 1, 2, ... tokens; without cache, one row per sentence

    @property
    def num_sentences(self) -> int:
        """Number of sentences, B."""
        return len(self._prompts)

    def strings(self, nodes: Tensor, length: int) -> list[list[int]]:
        """The tokens of expanded prefixes (n,), all of ``length`` tokens."""
        return self._tree.strings(nodes, length).tolist()

    def start(self) -> Tensor:
        """Log-probabilities (B, V) of the first token, float64, ``-inf`` for zero.

        Raises:
            ValueError: a cache that is filled already, that the model does not return, or that prefixes cannot share;
                NaN; or a processor that makes probabilities sum to more than 1.
        """
        kwargs = self._kwargs[0]
        cache = cache_in(kwargs)
        if isinstance(cache, Cache):
            check_shareable(cache)
            if cache.get_seq_length() > 0:
                raise ValueError(f"exact search starts from the prompt; pass {CACHE}=None, not a filled cache")
        inputs = self._model.prepare_inputs_for_generation(self._prompts, is_first_iteration=True, **kwargs)
        output = self._model(**inputs, return_dict=True)
        for cache_name in (CACHE, OLD_NAME):
            kwargs.pop(cache_name, None)
        filled = output.get(CACHE)  # as generate does: an adapter may have put in a cache of its own
        if kwargs.get("use_cache"):
            if not isinstance(filled, Cache):
                name = type(self._model).__name__
                raise ValueError(f"{name} keeps its cache elsewhere than in {CACHE}; pass use_cache=False")
            self._cache = PrefixCache(filled)
        return self._log_probabilities(output, self._prompts, torch.arange(self.num_sentences, device="cpu"))

    def expand(self, length: int, sentences: Tensor, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Continue prefixes of ``length`` >= 1 tokens.

        Args:
            length: number of tokens of each prefix.
            sentences: (n,) indices of their sentences.
            parents: (n,) numbers of the prefixes that they are one token longer than; not read where ``length`` is 1.
            tokens: (n,) their last tokens.

        Returns:
            The numbers (n,) of the prefixes, and the log-probabilities (n, V) of the next token as of the first.

        Raises:
            ValueError: NaN, or a processor that makes probabilities sum to more than 1.
        """
        nodes = self._tree.add(parents, tokens, length)
        device = self._prompts.device
        rows = sentences.to(device)
        ids = torch.cat([self._prompts[rows], self._tree.strings(nodes, length).to(device)], dim=1)
        kwargs = _select(self._kwargs_at(length), rows, self.num_sentences, self._cache is not None)
        if self._cache is not None:
            kwargs[CACHE] = self._cache.gather(sentences, self._tree.path(parents, length - 1))
        new_tokens = None if self._cache is None else 1
        inputs = self._model.prepare_inputs_for_generation(ids, next_sequence_length=new_tokens, **kwargs)
        output = self._model(**inputs, return_dict=True)
        if self._cache is not None:
            self._cache.append(kwargs[CACHE])
        return nodes, self._log_probabilities(output, ids, rows)

    def _kwargs_at(self, length: int) -> dict[str, object]:
        while len(self._kwargs) <= length:
            longer = self._model._update_model_kwargs_for_generation(
                {}, dict(self._kwargs[-1]), is_encoder_decoder=self._model.config.is_encoder_decoder
            )
            self._kwargs.append(longer)
        return self._kwargs[length]

    def _log_probabilities(self, output: ModelOutput, ids: Tensor, sentences: Tensor) -> Tensor:
        self.num_passes += 1
        logits = upcast(output.logits[:, -1]).to(ids.device)
        # A sparse model returns log-probabilities here, a fixed point of log_softmax.
        scores = self._constraints(ids, logits.log_softmax(-1), sentences.to(ids.device))
        if scores.isnan().any():
            row = int(scores.isnan().any(-1).nonzero()[0])
            raise ValueError(
                f"the model gave NaN after the tokens {ids[row].tolist()}, so nothing can be proved; look at "
                "its weights and inputs"
            )
        check_sums(scores)
        scores = without_floor(scores.clamp(max=0))
        return scores if self._membership is None else self._membership(ids, scores, sentences)


def _select(kwargs: dict[str, Any], rows: Tensor, num_sentences: int, cached: bool) -> dict[str, Any]:
    """The arguments for some of the sentences, with repetitions.

    Tensors with other rows than sentences (images, patches) are read with the prompts, and in the cache since.

    Raises:
        ValueError: there is no cache, so that they would be read again.
    """
    selected: dict[str, Any] = {}
    for name, value in kwargs.items():
        selected[name] = value
        if isinstance(value, ModelOutput):
            selected[name] = type(value)(**_select(value, rows, num_sentences, cached))
        elif isinstance(value, Tensor) and value.dim() > 0:
            batch_axis = 1 if name == "position_ids" and value.dim() == 3 else 0
            if value.shape[batch_axis] == num_sentences:
                selected[name] = value.index_select(batch_axis, rows.to(value.device))
            elif not cached:
                raise ValueError(
                    f"{name} has {value.shape[batch_axis]} rows for {num_sentences} sentences, so that exact search "
                    "cannot tell whose they are; pass use_cache=True, or one sentence at a time"
                )
    return selected
