"""The likeliest outputs of a model, proved: ``model.generate(..., custom_generate=..., trust_remote_code=True)``."""

from hf_sparse import exact_decoding


def generate(model, **options):
    """Token ids as ``generate`` returns them; see ``hf_sparse.exact_decoding``.

    Args:
        model: from ``generate``; sparse or dense.
        **options: those of ``generate`` and of ``exact_decoding``: ``num_hypotheses``, ``max_expanded``, ...
    """
    return model.generate(**options, custom_generate=exact_decoding)
