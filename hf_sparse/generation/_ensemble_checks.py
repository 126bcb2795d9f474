"""Properties that the members of an ensemble must share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..functional.arguments import check_type
from ..functional.head_weight import num_classes
from .inputs import start_token


def _end_tokens(given: int | list[int] | None) -> int | list[int] | None:
    if isinstance(given, list):
        return given[0] if len(given) == 1 else sorted(given)
    return given


# By the words of the error.
_SHARED: dict[str, Callable[[PreTrainedModel], object]] = {
    "is_encoder_decoder": lambda model: model.config.is_encoder_decoder,
    "the size of the vocabulary": lambda model: num_classes(model.get_output_embeddings()),
    "the end token": lambda model: _end_tokens(model.generation_config.eos_token_id),
    "the decoder's start token": lambda model: start_token(model) if model.config.is_encoder_decoder else None,
    "main_input_name": lambda model: model.main_input_name,
    "device": lambda model: str(model.device),
}


def check_members(models: Sequence[PreTrainedModel]) -> None:
    """Refuse members that cannot be averaged.

    Raises:
        TypeError: a member that cannot generate.
        ValueError: no members, or members that differ in one of ``_SHARED``.
    """
    if not models:
        raise ValueError(f"members must hold at least one model, were {models!r}")
    for number, model in enumerate(models):
        if not model.can_generate() or model.get_output_embeddings() is None:
            raise TypeError(f"member {number} of the ensemble ({type(model).__name__}) is not a model that generates")
    for name, value_of in _SHARED.items():
        first = value_of(models[0])
        for number, model in enumerate(models):
            if value_of(model) != first:
                raise ValueError(
                    f"members of an ensemble must share their vocabulary and kind, but {name} is {first} for member 0 "
                    f"({type(models[0]).__name__}) and {value_of(model)} for member {number} ({type(model).__name__})"
                )


def check_tokenizers(tokenizers: Sequence[PreTrainedTokenizerBase], num_members: int) -> None:
    """Refuse tokenizers whose vocabularies differ.

    Raises:
        TypeError: no tokenizer.
        ValueError: another number of tokenizers than members, or a token whose id differs.
    """
    if len(tokenizers) != num_members:
        raise ValueError(f"one tokenizer for each of the {num_members} members is needed, were {len(tokenizers)}")
    for number, tokenizer in enumerate(tokenizers):
        check_type(f"the tokenizer of member {number}", tokenizer, PreTrainedTokenizerBase, "AutoTokenizer")
    first = tokenizers[0].get_vocab()
    for number, tokenizer in enumerate(tokenizers):
        other = tokenizer.get_vocab()
        differ = sorted(token for token in first.keys() | other.keys() if first.get(token) != other.get(token))
        if differ:
            shown = "; ".join(f"{token!r} is {first.get(token)} and {other.get(token)}" for token in differ[:3])
            raise ValueError(
                f"the tokenizers of members 0 and {number} differ in {len(differ)} of {len(first)} and {len(other)} "
                f"tokens: {shown}"
            )
