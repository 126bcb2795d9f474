"""Files and models of other libraries that would hold the weights of a sparse model without its maps: refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from .find import sparse_models, sparse_state
from .patch import Patch
from .saved_config import block_of

_CTRANSLATE2 = "ctranslate2.converters.transformers"
_GLINER = "gliner.model"
_TRANSFORMER_LENS = "transformer_lens.loading_from_pretrained"


def _converted(original: Callable[..., object], self: Any, model: nn.Module, *args: object) -> object:
    """``ModelLoader.__call__`` of CTranslate2, whose engine computes softmax alone."""
    for sparse in sparse_models(model):
        raise ValueError(
            f"this {type(sparse).__name__} is sparse ({sparse_state(sparse).config.to_dict()}), and CTranslate2 would "
            "run it with softmax: serve it with Transformers, or convert what unsparsify(model) saves"
        )
    return original(self, model, *args)


def _hooked(
    original: Callable[..., object],
    name: str,
    config: object,
    hf_model: nn.Module | None = None,
    *args: object,
    **kwargs: object,
) -> object:
    """``get_pretrained_state_dict`` of TransformerLens before 4, whose own modules compute softmax alone."""
    for sparse in sparse_models(hf_model):
        raise ValueError(
            f"this {type(sparse).__name__} is sparse ({sparse_state(sparse).config.to_dict()}), and TransformerLens "
            "would copy its weights into modules with softmax: make a TransformerBridge of the dense model, and "
            "sparsify(bridge.original_model)"
        )
    return original(name, config, hf_model, *args, **kwargs)


def _save_gliner(
    original: Callable[..., object],
    self: Any,
    save_directory: object,
    *args: object,
    config: Any = None,
    **kwargs: object,
) -> object:
    """``save_pretrained`` of GLiNER, which keeps configurations of its encoders apart from theirs, and loads by them.

    Raises:
        ValueError: an encoder was made sparse, or dense again, since that configuration was read.
    """
    parts = vars(self.config if config is None else config).values()
    saved = [block_of(part) for part in parts if isinstance(part, PreTrainedConfig) and block_of(part) is not None]
    held = [block_of(encoder.config) for encoder in sparse_models(self.model)]
    for block in (*held, *saved):
        if block not in saved or block not in held:
            raise ValueError(
                f"the encoders of this {type(self).__name__} have {held or 'no sparse maps'}, and its configuration "
                f"says {saved or 'nothing of that'}, so that another model would come back: set "
                "model.config.encoder_config to the encoder's own config first, or labels_encoder_config for the "
                "encoder of labels"
            )
    return original(self, save_directory, *args, config=config, **kwargs)


OF_FOREIGN_FILES = (
    Patch(
        f"{_CTRANSLATE2}:ModelLoader",
        "__call__",
        _converted,
        reason="CTranslate2 takes the weights of a model, and runs them with softmax.",
        after=_CTRANSLATE2,
    ),
    Patch(
        f"{_GLINER}:BaseGLiNER",
        "save_pretrained",
        _save_gliner,
        reason="GLiNER saves the configuration that its encoder began with: one made sparse inside would be dense.",
        after=_GLINER,
    ),
    Patch(
        _TRANSFORMER_LENS,
        "get_pretrained_state_dict",
        _hooked,
        reason="HookedTransformer takes the weights of a model that it is given, and runs them with softmax.",
        after=_TRANSFORMER_LENS,
    ),
)
