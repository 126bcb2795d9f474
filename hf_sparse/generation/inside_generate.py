"""A function called where ``generate`` decodes, with all that it prepares for decoding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from transformers import PreTrainedModel

from ..model.dry_run import quiet_evaluation

_NO_DECODING = "generate of {} takes no custom_generate, so that nothing can be searched or scored"


class _Done(Exception):
    """Leaves ``generate`` with a result."""

    def __init__(self, result: Any) -> None:
        super().__init__(result)
        self.result = result


def inside_generate(
    model: PreTrainedModel, inputs: Mapping[str, object], decode: Callable[..., object], **options: object
) -> Any:
    """The result of ``decode``, called by ``model.generate`` as its method of decoding.

    ``generate`` is left from there: what follows in the generate of some models (Whisper cuts sequences and scores and
    asks for more segments) is for tokens, not for other results. The model is in evaluation mode meanwhile.

    Args:
        model: a model with ``generate``.
        inputs: keyword inputs of ``model.generate``.
        decode: as ``custom_generate``.
        **options: for ``model.generate``; those that ``decode`` names are passed to it.

    Raises:
        TypeError: a ``generate`` that calls no method of decoding.
    """

    @functools.wraps(decode)  # generate reads the names of its arguments off the signature
    def leave(*args: object, **kwargs: Any) -> Any:
        raise _Done(decode(*args, **kwargs))

    try:
        with quiet_evaluation(model):
            model.generate(**inputs, custom_generate=leave, **options)
    except _Done as done:
        return done.result
    except ValueError as error:  # MusicGen's generate takes it for an argument of the model
        if "custom_generate" not in str(error):
            raise
        raise TypeError(_NO_DECODING.format(type(model).__name__)) from error
    raise TypeError(_NO_DECODING.format(type(model).__name__))
