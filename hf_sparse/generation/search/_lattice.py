"""The tree of all strings as a model weighs it: the log-probabilities of every continuation of some prefixes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.cache_utils import Cache
from transformers.utils import ModelOutput

from ...functional.rows import upcast
from ._prefix_tree import PrefixCache, PrefixTree


class Lattice:
    """Continuations of prefixes of several sentences, computed with a cache that all prefixes share.

    Args:
        model: the model.
        input_ids: prompts (B, length), or the decoder's first tokens.
        logits_processor: applied to log-probabilities, as beam search does.
        model_kwargs: what ``generate`` prepared for the model, one row a sentence.
        max_length: length of the longest prefix, in tokens.
    """

    def __init__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        model_kwargs: dict[str, Any],
        max_length: int,
    ) -> None:
        self._model = model
        self._prompts = input_ids
        self._logits_processor = logits_processor
        self._tree = PrefixTree(max_length)
        self._cache: PrefixCache | None = None
        self._kwargs = [model_kwargs]  # for prefixes of 0, 1, 2, ... tokens; without cache, one row a sentence

    @property
    def num_sentences(self) -> int:
        """How many sentences are searched."""
        return len(self._prompts)

    def strings(self, nodes: Tensor, length: int) -> list[list[int]]:
        """The tokens of expanded prefixes (n,), all of them of ``length`` tokens."""
        return self._tree.strings(nodes, length).tolist()

    def start(self) -> Tensor:
        """Log-probabilities (B, V) of the first tokens."""
        kwargs = self._kwargs[0]
        cache = kwargs.get("past_key_values")
        if cache is not None and cache.get_seq_length() > 0:
            raise ValueError("exact search starts from the prompt; pass past_key_values=None, not a filled cache")
        inputs = self._model.prepare_inputs_for_generation(self._prompts, is_first_iteration=True, **kwargs)
        output = self._model(**inputs, return_dict=True)
        filled = kwargs.pop("past_key_values", None)
        if kwargs.get("use_cache"):
            if not isinstance(filled, Cache):
                raise ValueError(f"the cache of {type(self._model).__name__} is its own; pass use_cache=False")
            self._cache = PrefixCache(filled)
        return self._log_probabilities(output, self._prompts)

    def expand(self, length: int, sentences: Tensor, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Continue prefixes of ``length`` >= 1 tokens.

        Args:
            length: number of tokens of each prefix.
            sentences: the sentences (n,) they belong to.
            parents: the prefixes (n,) they are one token longer than; not read where ``length`` is 1.
            tokens: their last tokens (n,).

        Returns:
            The numbers (n,) of the prefixes, and the log-probabilities (n, V) of the next token.
        """
        nodes = self._tree.add(parents, tokens, length)
        device = self._prompts.device
        rows = sentences.to(device)
        ids = torch.cat([self._prompts[rows], self._tree.strings(nodes, length).to(device)], dim=1)
        kwargs = _select(self._kwargs_at(length), rows)
        if self._cache is not None:
            kwargs["past_key_values"] = self._cache.gather(sentences, self._tree.path(parents, length - 1))
        new_tokens = None if self._cache is None else 1
        inputs = self._model.prepare_inputs_for_generation(ids, next_sequence_length=new_tokens, **kwargs)
        output = self._model(**inputs, return_dict=True)
        if self._cache is not None:
            self._cache.append(kwargs["past_key_values"])
        return nodes, self._log_probabilities(output, ids)

    def _kwargs_at(self, length: int) -> dict[str, Any]:
        while len(self._kwargs) <= length:
            longer = self._model._update_model_kwargs_for_generation(
                {}, dict(self._kwargs[-1]), is_encoder_decoder=self._model.config.is_encoder_decoder
            )
            self._kwargs.append(longer)
        return self._kwargs[length]

    def _log_probabilities(self, output: Any, ids: Tensor) -> Tensor:
        logits = output.logits[:, -1]
        logits = upcast(logits).to(ids.device)
        # A sparse model gives log-probabilities here, which log_softmax leaves as they are.
        scores = self._logits_processor(ids, logits.log_softmax(-1))
        if scores.isnan().any():
            row = int(scores.isnan().any(-1).nonzero()[0])
            raise ValueError(f"the model gave NaN after the tokens {ids[row].tolist()}: nothing can be proved")
        if (scores > 1e-5).any():
            raise ValueError(
                "a logits processor raised a probability above 1, so that a string may be likelier than its prefix: "
                "no bound holds; leave that processor out, or let it lower probabilities only"
            )
        return scores.clamp(max=0)


def _select(kwargs: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    """The arguments for some of the sentences, with repetitions."""
    selected = {}
    for name, value in kwargs.items():
        if isinstance(value, Tensor) and value.dim() > 0:
            batch_axis = 1 if name == "position_ids" and value.dim() == 3 else 0
            selected[name] = value.index_select(batch_axis, rows)
        elif isinstance(value, ModelOutput):
            selected[name] = type(value)(**_select(dict(value), rows))
        else:
            selected[name] = value
    return selected
