"""Models of a run: small ones made here, saving, sparse maps, distributions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerBase, set_seed

import hf_sparse
from hf_sparse.attention import attention_sites

NUM_HEADS = 4  # of attention, in small models


def small_gpt2(
    tokenizer: PreTrainedTokenizerBase, width: int, layers: int, context: int, seed: int
) -> GPT2LMHeadModel:
    """A dense model; the same seed gives the same weights.

    Args:
        tokenizer: the model has its tokens.
        width: of its states, a multiple of ``NUM_HEADS``.
        layers: how many it has.
        context: most tokens of a row.
        seed: of its weights.
    """
    set_seed(seed)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=width,
        n_layer=layers,
        n_head=NUM_HEADS,
        n_positions=context,
        initializer_range=0.06,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return GPT2LMHeadModel(config)


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save a trained model, dense or sparse, in the folder ``model`` of its run."""
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


def config_of(model: PreTrainedModel) -> dict[str, Any] | None:
    """Settings of a model's sparse maps, as ``SparseConfig.from_dict`` takes them; None for a dense model."""
    return hf_sparse.sparse_config(model).to_dict() if hf_sparse.is_sparse(model) else None


def learned_by_layer(model: PreTrainedModel, kind: str | None = None) -> dict[str, list[list[float]]]:
    """Learned settings of attention, or of one kind of it, by name: a list of layers, each a list of heads."""
    values: dict[str, list[list[float]]] = {}
    for module, site in attention_sites(model):
        for name in site.map_config.learned if site.map_config and kind in (None, site.kind) else ():
            numbers = site.map_config.setting(name).from_real(getattr(module, f"sparse_{name}").value.detach())
            values.setdefault(name, []).append([round(float(number), 3) for number in numbers])
    return values


def probabilities(model: PreTrainedModel, logits: Tensor) -> Tensor:
    """Distribution over the last axis of a model's logits: by the map of its head, or softmax if it is dense."""
    return hf_sparse.probabilities(model, logits) if hf_sparse.is_sparse(model) else logits.softmax(-1)


def entmax_map(alpha: float, temperature: float | str) -> dict[str, Any] | None:
    """Map of the entmax family at ``alpha``, as ``sparsify`` takes it; None for softmax, which is not replaced."""
    if alpha == 1:
        return None
    named = {1.5: {"name": "entmax15"}, 2: {"name": "sparsemax"}}.get(alpha, {"name": "entmax", "alpha": alpha})
    return {**named, "temperature": temperature}
