"""Outputs given that they are in a language: ``model.generate(..., custom_generate=..., trust_remote_code=True)``."""

import torch

from hf_sparse import Grammar, Lexicon, RequiredWords, condition

LANGUAGES = {"lexicon": Lexicon, "regex": Grammar.from_regex, "words": RequiredWords}


def generate(model, inputs=None, given=None, tokenizer=None, **options):
    """One ``Conditioned`` per sentence; see ``hf_sparse.condition``.

    Args:
        model: from ``generate``; sparse or dense.
        inputs: of ``generate``; the same by name are among the options.
        given: a ``Language``; or else one of the options ``lexicon`` (texts, or lists of token ids), ``regex``,
            ``words`` (texts to contain), which need a tokenizer.
        tokenizer: the model's.
        **options: those of ``generate`` and of ``condition``: ``max_expanded``, ``max_new_tokens``, ...

    Raises:
        TypeError: no language, or more than one.
    """
    named = [name for name in LANGUAGES if options.get(name) is not None]
    if len(named) + (given is not None) != 1:
        raise TypeError(f"give one of given, {', '.join(LANGUAGES)}; was given {len(named) + (given is not None)}")
    if named:
        given = LANGUAGES[named[0]](options[named[0]], tokenizer)
    passed = {name: value for name, value in options.items() if value is not None and name not in LANGUAGES}
    tensors = {name: value for name, value in passed.items() if isinstance(value, torch.Tensor)}
    if inputs is not None:
        tensors[model.main_input_name] = inputs
    others = {name: value for name, value in passed.items() if name not in tensors}
    return condition(model, tensors, given, **others)
