"""What importing this package changes in Transformers: four methods, which leave dense models as they are."""

from __future__ import annotations

import functools
from typing import Any, cast

from transformers import FillMaskPipeline, PreTrainedModel

from .attention import NAME, through_interface
from .config import SparseConfig
from .hub import attach_as_saved, check_adapter

_ORIGINAL = "_hf_sparse_original"
_HOOKED = (
    (PreTrainedModel, "post_init"),
    (PreTrainedModel, "_check_and_adjust_attn_implementation"),
    (PreTrainedModel, "load_adapter"),
    (FillMaskPipeline, "_forward"),
)


def install() -> None:
    """Let sparse checkpoints come back sparse, and let fill-mask pipelines read the sparse distribution.

    ``post_init`` is the one place every way of building a model passes through, before weights are loaded. Before
    that, models whose files list the attention they can be built with must not be asked for ours by name. Adapters of
    sparse models are not loaded into others. The fill-mask pipeline takes softmax of logits, which gives the
    probabilities back where they are log-probabilities.
    """
    build, check, load, fill = (getattr(owner, name) for owner, name in _HOOKED)
    if hasattr(build, _ORIGINAL):
        return

    @functools.wraps(build)
    def post_init(self: PreTrainedModel) -> None:
        build(self)
        attach_as_saved(self)

    @functools.wraps(check)
    def _check_and_adjust_attn_implementation(
        self: PreTrainedModel, attn_implementation: str | None, is_init_check: bool = False, *args: Any, **kwargs: Any
    ) -> str:
        if is_init_check and attn_implementation == NAME and not through_interface(cast(Any, type(self))):
            attn_implementation = None
        return check(self, attn_implementation, is_init_check, *args, **kwargs)

    @functools.wraps(load)
    def load_adapter(self: PreTrainedModel, peft_model_id: str | None = None, *args: Any, **kwargs: Any) -> Any:
        check_adapter(self, peft_model_id, **(kwargs.get("adapter_kwargs") or {}))
        return load(self, peft_model_id, *args, **kwargs)

    @functools.wraps(fill)
    def _forward(self: FillMaskPipeline, model_inputs: Any) -> Any:
        config: SparseConfig | None = getattr(self.model, "_sparse_config", None)
        if config is not None and config.head is not None:
            model_inputs = {**model_inputs, "log_probs": True}
        return fill(self, model_inputs)

    hooks = (post_init, _check_and_adjust_attn_implementation, load_adapter, _forward)
    for (owner, name), hook in zip(_HOOKED, hooks):
        setattr(hook, _ORIGINAL, getattr(owner, name))
        setattr(owner, name, hook)


def uninstall() -> None:
    """Undo ``install``."""
    for owner, name in _HOOKED:
        method = getattr(owner, name)
        setattr(owner, name, getattr(method, _ORIGINAL, method))
