"""All outputs of nonzero probability: ``model.generate(..., custom_generate=..., trust_remote_code=True)``."""

import torch

from hf_sparse import enumerate_support


def generate(model, inputs=None, **options):
    """A ``SupportSet``; see ``hf_sparse.enumerate_support``.

    Args:
        model: from ``generate``; a dense one needs a ``min_probability``.
        inputs: of ``generate``, for one sentence; the same by name are among the options.
        **options: those of ``generate`` and of ``enumerate_support``: ``max_hypotheses``, ``min_probability``, ...
    """
    given = {name: value for name, value in options.items() if value is not None}
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    if inputs is not None:
        tensors[model.main_input_name] = inputs
    return enumerate_support(model, tensors, **{name: value for name, value in given.items() if name not in tensors})
