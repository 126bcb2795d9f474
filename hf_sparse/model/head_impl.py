"""The choice of how ``generate`` computes the logits of a sparse head."""

from __future__ import annotations

from torch import nn

from ..kernels import require_cpp
from .find import sparse_state, transformers_model
from .screening import CANNOT_SCREEN, HEAD_IMPLS, head_problem


def set_head_impl(model: nn.Module, impl: str) -> None:
    """Choose how ``generate`` computes the logits of a sparse head.

    Screened, all logits are bounded from a copy of the head's weights in 8 bits, and only those that can have weight
    are computed from the weights themselves. The distribution is that of the full product, to the rounding of one dot
    product. The copy takes 1.0625 bytes a weight, 27 % of what a float32 head takes, from the first step that needs it
    until another choice, ``unsparsify`` or the end of the model; it is not saved. All weights are read once in every
    call of ``generate``, to see that the copy is theirs.

    Args:
        model: a model with a sparse head. Changed in place.
        impl: ``"full"`` multiplies with all weights. ``"screened"`` screens steps of one position and at most 8 rows,
            in ``generate``, without gradients, graphs or autocast; everything else takes the full product.
            ``"auto"``, the default, screens such steps, but not the first of a call, on CPUs with a C++ compiler where
            the head has 8 million weights or more.

    Raises:
        ValueError: an unknown ``impl``; a dense head; ``"screened"`` for a map other than alpha_relu (not centered)
            and the entmax family with alpha above 1 up to 2, or for a head that is not one linear layer on the CPU.
        KernelUnavailable: ``"screened"`` where there is no C++ kernel.

    >>> from hf_sparse import sparsify
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    >>> model = sparsify(LlamaForCausalLM(LlamaConfig(vocab_size=20, **sizes)), head="sparsemax")
    >>> set_head_impl(model, "full")
    """
    if impl not in HEAD_IMPLS:
        raise ValueError(f"impl must be one of {', '.join(map(repr, HEAD_IMPLS))}, was {impl!r}")
    state, inner = sparse_state(model), transformers_model(model)
    if state.config.head is None:
        raise ValueError("the head of this model is dense; make it sparse first: sparsify(model, head=...)")
    if impl == "screened":
        problem = head_problem(inner.get_output_embeddings(), state.config.head)
        if problem is not None:
            raise ValueError(CANNOT_SCREEN.format(problem))
        require_cpp()
    for each in (state, *state.parts):
        each.screen.choose(impl)
