"""sparsify and unsparsify: what is asked for is checked, put on the model, and looked at as it runs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar, cast

from accelerate.utils import align_module_device
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention import attention_sites, credit_refusal, find_sites, observe, refusal
from ..attention.swap_class import check_forward
from ..config import KINDS, MapConfig, SparseConfig
from ..fertility.source import source_for
from ..functional import estimate_tau_from_head
from ..losses import fused_maps
from .audit import audit_attention, audit_fused_loss, hidden_rms, input_device, quiet_evaluation
from .distribution import distribution
from .example import example_inputs, made_up_input
from .sparse_model import SparseModel
from .state import attach, detach

Model = TypeVar("Model", bound=nn.Module)
logger = logging.getLogger(__name__)


def sparsify(
    model: Model,
    attn: Any = None,
    head: Any = None,
    *,
    fused_loss: bool = False,
    fertility: nn.Module | None = None,
    training_fertility: nn.Module | None = None,
    example: Mapping[str, Any] | None = None,
) -> Model:
    """Replace softmax by sparse maps in a model's attention, at its language-model head, or both.

    Args:
        model: a Transformers model, or a PEFT model around one. Changed in place.
        attn: None, a map's name ("entmax15", "sparsemax", "entmax", "softmax"), a mapping with settings
            (``{"name": "entmax", "alpha": 1.33}``), or one of these for some kinds of attention
            (``{"encoder": ..., "decoder": ..., "cross": ...}``); kinds left out keep softmax. Every map, at the head
            too, takes a ``temperature`` that its scores are divided by; in attention also ``delta``, ``beta`` and
            ``gamma``, for scores times ``delta + beta (log n) ** gamma`` with n visible keys and one. "csoftmax" and
            "csparsemax", for decoders and cross-attention, bound what each key receives over all queries
            (``{"cross": {"name": "csparsemax", "fertility": 2.0}}``). All others take, for cross-attention,
            ``"coverage": "vector"``: what each key received before goes into its score by learned vectors.
        head: None, a map's name ("alpha_relu" too), or a mapping with settings. ``tau="auto"``, the default of
            alpha_relu, estimates the threshold from the head's weights. That fits models trained from scratch. Logits
            of pretrained heads carry an offset softmax never saw: ``centered=True`` takes it off, and ``calibrate``
            fits threshold and temperature to data.
        fused_loss: in training, compute the head's loss a few rows at a time without ever holding the logits. For
            heads that are one linear layer, with a scale, a bias and a soft cap at most.
        fertility: for cross-attention with ``"fertility": "predicted"`` a ``FertilityPredictor``, with ``"guided"`` a
            ``GuidedFertility``. It becomes a part of the model, which works out the bounds of every batch with it, and
            saves it; it is not trained there.
        training_fertility: one of the two, in its place while the model trains.
        example: keyword arguments for one forward call, for models whose input cannot be made up. They are only
            used to check that every attention module is reached.

    Returns:
        The same object. ``output.logits`` stay raw scores; ``generate`` decodes from the sparse distribution.

    Raises:
        TypeError: not a Transformers model, or a value of the wrong type.
        ValueError: an unknown map or setting, a setting out of range, nothing to replace, a model that is sparse
            already or whose forward something wraps, attention that cannot be reached, input that cannot be made up,
            a predictor or table that is missing or that nothing asks for. The model is then as it was.
    """
    dense = transformers_model(model)
    if is_sparse(dense):
        raise ValueError(
            f"this {type(dense).__name__} is sparse already ({sparse_config(dense).to_dict()}); "
            "call unsparsify(model) first, in an ensemble on each of its members"
        )
    config = SparseConfig.parse(attn, head, fused_loss)
    source = source_for(dense, config, fertility, training_fertility)
    check_forward(dense)
    _check_fits(dense, config)
    if config.is_learned and hasattr(dense, "_hf_hook") and any(p.is_meta for p in dense.parameters()):
        raise ValueError(
            f"parts of this {type(dense).__name__} are offloaded, where nothing can be learned; load "
            "it without offloading, or give a number"
        )
    if config.is_learned and model is not dense:
        raise ValueError(
            "PEFT would not save a setting that is learned in a model it holds already: make the model sparse first, "
            'then get_peft_model with the setting among modules_to_save, as modules_to_save=["sparse_alpha"]'
        )
    with made_up_input(dense, example):
        config = _completed(dense, config, example)
        attach(dense, config, config.to_dict(), source)
        if input_device(dense).type != "meta":
            with ExitStack() as undo:
                undo.callback(detach, dense)
                _audit(dense, config, example)
                undo.pop_all()  # all is well: stay sparse
    return model


def _completed(model: PreTrainedModel, config: SparseConfig, example: Mapping[str, Any] | None) -> SparseConfig:
    """``config`` with what the model itself has to say: a threshold that is left open, how many heads learn."""
    if config.head is not None and config.head.open_settings:
        head = model.get_output_embeddings()
        rms = hidden_rms(model, example_inputs(model) if example is None else example)
        with align_module_device(head):  # its weights may be on disk
            tau = estimate_tau_from_head(
                head,
                config.head.map_settings["alpha"],
                rms,
                temperature=config.head.temperature,
                centered=config.head.centered,
            )
        logger.info("tau = %.4f, estimated from the weights of the head", tau)
        config = replace(config, head=config.head.with_settings(tau=tau))
    if config.is_learned:
        inputs = example_inputs(model) if example is None else example
        config = config.with_heads(_count_heads(model, config, inputs))
    return config


def _audit(model: PreTrainedModel, config: SparseConfig, example: Mapping[str, Any] | None) -> None:
    if config.attn is not None:
        audit_attention(model, example_inputs(model) if example is None else example)
    if config.fused_loss:
        audit_fused_loss(model, example_inputs(model) if example is None else example)


def unsparsify(model: Model) -> Model:
    """Undo ``sparsify``: the same object, with logits bit-equal to those it had before.

    Args:
        model: what ``sparsify`` returned.

    Raises:
        ValueError: the model is not sparse, or something wraps its forward.
    """
    sparse = transformers_model(model)
    if not isinstance(sparse, SparseModel):
        raise ValueError(f"this {type(sparse).__name__} is not sparse by itself: there is nothing to undo")
    check_forward(sparse)
    detach(sparse)
    return model


def is_sparse(model: nn.Module) -> bool:
    """Whether ``sparsify`` was applied to ``model`` (or to the model inside a PEFT model) and not undone.

    An ``Ensemble`` counts as sparse too: it has settings of its own.
    """
    return hasattr(transformers_model(model), "_sparse_config")


def sparse_config(model: nn.Module) -> SparseConfig:
    """The settings of a sparse model.

    Raises:
        ValueError: the model is not sparse.
    """
    if not is_sparse(model):
        raise ValueError(
            f"this {type(transformers_model(model)).__name__} is not sparse; call sparsify(model, ...) first"
        )
    return cast(Any, transformers_model(model))._sparse_config


def probabilities(model: nn.Module, logits: Tensor) -> Tensor:
    """The next-token distribution that ``generate`` reads, from a sparse model's logits.

    Args:
        model: a sparse model.
        logits: its raw scores (..., V), as in ``output.logits``.

    Returns:
        Probabilities (..., V) that sum to one, float32 (float64 for float64 logits): softmax where the head is dense,
        alpha-ReLU weights divided by their sum.

    Raises:
        ValueError: the model is not sparse.
    """
    return distribution(sparse_config(model).head or MapConfig("softmax"), logits)


def _count_heads(
    model: PreTrainedModel, config: SparseConfig, inputs: Mapping[str, Any]
) -> dict[str, tuple[int, int]]:
    """How many heads each kind of attention with something to learn has, and how long their queries are (0 for
    unseen), on ``inputs``.
    """
    softmax = SparseConfig.parse(attn="softmax")
    attach(model, softmax, softmax.to_dict())
    try:
        with quiet_evaluation(model), observe(model) as counts:
            model(**inputs)
        sites = [site for _, site in attention_sites(model)]
    finally:
        detach(model)
    heads: dict[str, tuple[int, int]] = {}
    for site in sites:
        map_config = config.attention(site.kind, site.layer)
        if map_config is None or not map_config.learned_names:
            continue
        seen = counts[site.path].heads, counts[site.path].head_dim
        if seen[0] == 0 or heads.setdefault(site.kind, seen)[0] != seen[0]:
            raise ValueError(
                f"a setting can only be learned for each head where all {site.kind} attention has the same number of "
                f"heads, and {site.path!r} has another, or does not show its heads; give a number, or no coverage"
            )
    return heads


def transformers_model(model: nn.Module) -> PreTrainedModel:
    """The Transformers model inside a PEFT model, or ``model`` itself."""
    inner: Any = model
    if hasattr(inner, "get_base_model"):  # PEFT
        inner = inner.get_base_model()
    if not isinstance(inner, PreTrainedModel):
        raise TypeError(
            f"a Transformers model (PreTrainedModel) is needed, was {type(model).__name__}; "
            "make the model sparse before wrapping or compiling it"
        )
    return inner


def _check_fits(model: PreTrainedModel, config: SparseConfig) -> None:
    name = type(model).__name__
    if config.head is not None and model.get_output_embeddings() is None:
        raise ValueError(f"{name} has no language-model head to make sparse; pass head=None")
    if config.fused_loss and (config.head is None or config.head.name not in fused_maps()):
        fused = ", ".join(map(repr, fused_maps()))
        raise ValueError(f"fused_loss=True needs a head with a fused loss, one of {fused}; or pass fused_loss=False")
    if config.fused_loss and not isinstance(model.get_output_embeddings(), nn.Linear):
        raise ValueError(f"the head of {name} is not one linear layer; pass fused_loss=False")
    if config.attn is None:
        return
    sites = find_sites(model, config, model.config.is_encoder_decoder)
    if not sites:
        raise ValueError(f"{name} has no attention that is computed with softmax; pass attn=None")
    reasons = [refusal(model, sites), *(credit_refusal(model.get_submodule(site.path), site) for site in sites)]
    for reason in filter(None, reasons):
        raise ValueError(f"{name}: {reason}, or pass attn=None")
    arguments = inspect.signature(type(model).forward).parameters.values()
    sequential = any(map_config.is_sequential for map_config in config.attention_maps)
    if sequential and all(p.kind is not p.VAR_KEYWORD for p in arguments):
        raise ValueError(
            f"{name} takes no arguments but its own, and so no fertility and no mask of its target, which bounds and "
            "coverage need; pass attn=None, or a map without them"
        )
    found = {site.kind for site in sites}
    if isinstance(config.attn, dict):
        absent = [kind for kind in config.attn if kind not in found]
        if absent:
            kinds = ", ".join(repr(kind) for kind in KINDS if kind in found)
            raise ValueError(f"{name} has no {absent[0]} attention; it has: {kinds}")
        check_layers(model, config)


def check_layers(model: PreTrainedModel, config: SparseConfig) -> None:
    """Refuse lists of maps, one for each layer of a kind, that are longer or shorter than those layers are many."""
    sites = find_sites(model, config, model.config.is_encoder_decoder)
    for kind, map_config in config.attn.items() if isinstance(config.attn, dict) else ():
        layers = sum(site.kind == kind for site in sites)
        if isinstance(map_config, tuple) and layers not in (0, len(map_config)):
            name = type(model).__name__
            raise ValueError(f"attn[{kind!r}] lists {len(map_config)} layers, {name} has {layers} of them")
