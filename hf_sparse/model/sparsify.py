"""sparsify and unsparsify: validate the request, run the model once, attach, and verify with a second run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from transformers import PreTrainedModel

from ..attention.find import calls_softmax, find_sites, named_attention
from ..attention.inline import inline_refusal, is_softmax
from ..attention.interface import NAME, foreign_attention
from ..attention.sequential import sequential_refusal
from ..config import SparseConfig
from ..config.settings import PerHead
from ..config.sparse_config import KINDS
from ..fertility.source import source_for
from ..functional.head_weight import HEAD_WITHOUT_ROWS, is_quantized
from ..losses import fused_maps
from .attach import attach, detach, own_configs, places_of_configs, put_configs
from .audit import audit
from .auto_settings import balanced_head, tau_of_head
from .dry_run import DryRun, input_device
from .example import NoExampleError, first_run
from .find import check_dense, check_named_outputs, divides_heads, sparse_state, transformers_model
from .forward_guard import bind_again, check_forward, mixed_precision_off
from .partitioned import whole
from .peft_guard import check_no_shadow
from .sparse_model import SparseModel

Model = TypeVar("Model", bound=nn.Module)


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
            too, takes a ``temperature`` that its scores are divided by, ``"auto"`` for training from scratch (in
            attention of about 64 keys); in attention also ``delta``, ``beta`` and ``gamma``, for scores times
            ``delta + beta (log n) ** gamma`` with n visible keys and one. "csoftmax" and
            "csparsemax", for decoders and cross-attention, bound what each key receives over all queries
            (``{"cross": {"name": "csparsemax", "fertility": 2.0}}``). All others take, for cross-attention,
            ``"coverage": "vector"``: what each key received before goes into its score by learned vectors.
        head: None, a map's name ("alpha_relu" too), or a mapping with settings. To train from scratch give it
            ``"temperature": "auto"``, which grows with alpha and with the vocabulary; see
            ``hf_sparse.functional.balanced_temperature``. ``tau="auto"``, the default of
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
            used to check that every attention module is reached. On the device ``meta`` nothing runs: that is not
            checked, and settings that a run works out are refused.

    Returns:
        The same object. Without labels softmax of ``output.logits`` is the sparse distribution, which ``generate``
        decodes from; with labels they are raw scores and the loss is the map's.

    Raises:
        TypeError: not a Transformers model, or a value of the wrong type.
        ValueError: an unknown map or setting, a setting out of range, nothing to replace, a model that is sparse
            already or whose forward something wraps, attention that cannot be reached, input that cannot be made up,
            a predictor or table that is missing or that nothing asks for. The model is then as it was.
        NotImplementedError: a head whose logits have another name in the model's output. The model is as it was.
    """
    dense = transformers_model(model)
    check_dense(dense)
    check_no_shadow(model)
    config = SparseConfig.parse(attn, head, fused_loss)
    source = source_for(dense, config, fertility, training_fertility)
    with mixed_precision_off(model), mixed_precision_off(dense), whole(dense.parameters()):
        check_forward(dense)
        if config.head is not None:
            check_named_outputs(dense)
        _check_fits(dense, config)
        check_heads_are_here(dense, config)
        check_learned(model, dense, config)
        config = _with_temperature(dense, config)
        run = _first_run(dense, config, example)
        if run is not None:
            config = _completed(dense, config, run)
        with ExitStack() as undo:
            undo.callback(put_configs, places_of_configs(model))
            own_configs(model)
            attach(dense, config, source)
            undo.callback(detach, dense)
            sparse_state(dense).owns_configs = True
            if run is not None:
                audit(dense, run.inputs)
            undo.pop_all()  # all is well: stay sparse
    bind_again(model, dense)
    return model


def unsparsify(model: Model) -> Model:
    """Undo ``sparsify``: the same object, with logits bit-equal to those it had before.

    Its configuration stays a copy of its own, as ``sparsify`` made it, with all that was changed in it since.

    Args:
        model: what ``sparsify`` returned.

    Raises:
        ValueError: the model is not sparse, is a part of a sparse one, something wraps its forward, or it has been
            given another class.
        TypeError: not a Transformers model.
    """
    sparse = transformers_model(model)
    if not isinstance(sparse, SparseModel):
        raise ValueError(f"this {type(sparse).__name__} is not sparse by itself: there is nothing to undo")
    owner = sparse_state(model).whole
    if owner is not None:
        raise ValueError(
            f"this {type(sparse).__name__} is a part of a sparse {owner}: call unsparsify on the whole, or, "
            "for a copy of the part alone, save it and load it first"
        )
    _check_class(sparse)
    with mixed_precision_off(model), mixed_precision_off(sparse):
        check_forward(sparse)
        own_configs(model)
        detach(sparse)
    bind_again(model, sparse)
    return model


def _check_class(sparse: PreTrainedModel) -> None:
    """Refuse to take away a class that the model, or a sparse part of it, was given since it is sparse.

    Raises:
        ValueError: it was given one.
    """
    for part in sparse.modules():
        if isinstance(part, SparseModel) and "_dense_class" not in vars(type(part)):
            dense = type(part)._dense_class.__name__
            raise ValueError(
                f"this {dense} was given the class {type(part).__name__} since it is sparse, which unsparsify would "
                "take away: give its own class back first; a model to be divided by fully_shard is made dense before"
            )


def _needs_a_run(config: SparseConfig) -> bool:
    """Whether the model has to run: to complete the configuration, or to see that its attention was reached."""
    return bool(config.attn or config.fused_loss or (config.head is not None and config.head.open_settings))


def _first_run(model: PreTrainedModel, config: SparseConfig, example: Mapping[str, object] | None) -> DryRun | None:
    """``first_run``; None where the model has no weights, or where it need not run and no input can be made up."""
    if input_device(model).type == "meta":
        return None
    try:
        return first_run(model, example)
    except NoExampleError:
        if example is not None or _needs_a_run(config):
            raise
        return None


def _with_temperature(model: PreTrainedModel, config: SparseConfig) -> SparseConfig:
    """Fill in a temperature of the head that is left open."""
    head = config.head
    if head is None or head.temperature != "auto":
        return config
    return replace(config, head=balanced_head(model, head))


def _completed(model: PreTrainedModel, config: SparseConfig, before: DryRun) -> SparseConfig:
    """Fill in what the dense run showed: a threshold that is left open, the number of heads that learn."""
    if config.head is not None and config.head.open_settings:
        config = replace(config, head=config.head.with_settings(tau=tau_of_head(model, config.head, before)))
    return with_learning_heads(model, config, before) if config.is_learned else config


def with_learning_heads(model: PreTrainedModel, config: SparseConfig, before: DryRun) -> SparseConfig:
    """Give what is learned a start for each head that a dense run has shown.

    Raises:
        ValueError: heads that it did not show, or that differ in number inside one kind of attention.
    """
    return config.with_heads(_learning_heads(model, config, before))


def _learning_heads(model: PreTrainedModel, config: SparseConfig, before: DryRun) -> dict[str, tuple[int, int]]:
    """By kind of attention with something to learn, the number of heads and the length of their queries."""
    heads: dict[str, tuple[int, int]] = {}
    for site in find_sites(model, config):
        if not site.learned_names:
            continue
        seen = before.heads.get(site.path, (0, 0))
        if seen[0] == 0 or heads.setdefault(site.kind, seen)[0] != seen[0]:
            raise ValueError(
                f"a setting can only be learned for each head where all {site.kind} attention has the same number of "
                f"heads, and {site.path!r} has another, or does not show its heads; give a number, or no coverage"
            )
    return heads


def _check_fits(model: PreTrainedModel, config: SparseConfig) -> None:
    """Refuse what the model cannot honour, by name.

    Raises:
        ValueError: the reason, with what to pass instead.
    """
    problems = (_name_problems, _head_problems, _attention_problems, _weightless_problems)
    for problem in chain.from_iterable(problems_of(model, config) for problems_of in problems):
        raise ValueError(problem)


def _name_problems(model: PreTrainedModel, _: SparseConfig) -> Iterator[str]:
    configs = (vars(module).get("config") for module in model.modules())
    if any(getattr(config, "_attn_implementation", None) == NAME for config in configs):
        yield (
            f"this {type(model).__name__} is dense and has attn_implementation={NAME!r}, which is for checkpoints "
            "that were saved sparse; load it without, or call model.set_attn_implementation('sdpa') first"
        )


def _head_problems(model: PreTrainedModel, config: SparseConfig) -> Iterator[str]:
    name, head = type(model).__name__, model.get_output_embeddings()
    if config.head is not None and head is None:
        yield f"{name} has no language-model head to make sparse; pass head=None"
    elif config.head is not None and not hasattr(head, "weight"):
        yield f"{name}: {HEAD_WITHOUT_ROWS.format(type(head).__name__)}"
    elif config.head is not None and hasattr(model, "marginalize"):
        yield (
            f"{name} decodes from a mixture of distributions, one a document, each of which it takes by a softmax of "
            "its own (marginalize); pass head=None"
        )
    if not config.fused_loss:
        return
    if config.head is None or config.head.name not in fused_maps():
        fused = ", ".join(map(repr, fused_maps()))
        yield f"fused_loss=True needs a head with a fused loss, one of {fused}; or pass fused_loss=False"
    if not isinstance(head, nn.Linear):
        yield f"the head of {name} is not one linear layer; pass fused_loss=False"
    elif is_parametrized(head, "weight"):
        yield (
            f"the weight of the head of {name} is parametrized, and a fused loss takes the very tensor that the head "
            "multiplies with; pass fused_loss=False"
        )
    elif is_quantized(head):
        yield (
            f"the head of {name}, a {type(head).__name__}, is quantized, and a fused loss multiplies with its weight; "
            "pass fused_loss=False, or leave the head out where the model is quantized"
        )


def _attention_problems(model: PreTrainedModel, config: SparseConfig) -> Iterator[str]:
    if not config.attn:
        return
    name = type(model).__name__
    sites = find_sites(model, config)
    if not sites:
        headless = model.get_output_embeddings() is None
        instead = ", and no LM head: it has nothing to make sparse" if headless else "; pass attn=None"
        yield f"{name} has no attention that is computed with softmax{instead}{_elsewhere(model)}"
    sequential = (sequential_refusal(model.get_submodule(site.path), site) for site in sites)
    reasons = [inline_refusal(model, sites), *sequential]
    yield from (f"{name}: {reason}, or pass attn=None" for reason in reasons if reason)
    arguments = inspect.signature(type(model).forward).parameters.values()
    if config.is_sequential and all(p.kind is not p.VAR_KEYWORD for p in arguments):
        yield (
            f"{name} takes no arguments but its own, and so no fertility and no mask of its target, which bounds and "
            "coverage need; pass attn=None, or a map without them"
        )
    for site in sites:
        module = model.get_submodule(site.path)
        foreign = None if site.inline else foreign_attention(module)
        if foreign is not None:
            yield (
                f"{type(module).__name__} at {site.path!r} attends by {foreign!r}, which is not of Transformers, and "
                "what it does beside softmax would be lost; call model.set_attn_implementation('eager') first if that "
                "is nothing, or pass attn=None"
            )
    yield from _saving_problems(model)
    yield from kind_problems(model, config)
    yield from layer_problems(model, config)


def _elsewhere(model: PreTrainedModel) -> str:
    """What else to do about attention of a model's own file: its methods name no softmax, or its name no attention."""
    foreign = [
        (path, module)
        for path, module in model.named_modules()
        if path and not type(module).__module__.startswith(("transformers.", "torch."))
    ]
    for path, module in foreign:
        if named_attention(type(module)):
            return (
                f", or, where {type(module).__name__} at {path!r} leaves its softmax to a function or a part, move it "
                "into a method of that class"
            )
    for path, module in foreign:
        if calls_softmax(type(module)) and not is_softmax(module):
            return f", or, where {type(module).__name__} at {path!r} is attention, give its class a name that says so"
    return ""


def _weightless_problems(model: PreTrainedModel, config: SparseConfig) -> Iterator[str]:
    """What a run of the model would work out, where it has no weights to run with."""
    if input_device(model).type != "meta":
        return
    settings = {"head": [] if config.head is None else config.head.open_settings}
    settings |= {rule.role: rule.uncounted for rule in config.attn}
    if left_open := [f"{name} of {role}" for role, names in settings.items() for name in names]:
        yield (
            f"this {type(model).__name__} has no weights, its device is meta, and a run of it has to work out "
            f"{', '.join(left_open)}; load the weights first, or give numbers"
        )


def _saving_problems(model: PreTrainedModel) -> Iterator[str]:
    if any(getattr(vars(module).get("config"), "output_attentions", False) for module in model.modules()):
        yield (
            f"the configuration of {type(model).__name__} has output_attentions=True, with which Transformers would "
            "not save sparse attention; set it to False, and ask for weights by model(..., output_attentions=True)"
        )


def kind_problems(model: PreTrainedModel, config: SparseConfig) -> Iterator[str]:
    """Kinds of attention with rules of their own that the model lacks."""
    sites = find_sites(model, config)
    found = [kind for kind in KINDS if any(site.kind == kind for site in sites)]
    for kind in config.kinds:
        if kind not in found:
            yield f"{type(model).__name__} has no {kind} attention; it has: {', '.join(map(repr, found))}"


def layer_problems(model: PreTrainedModel, config: SparseConfig) -> Iterator[str]:
    """Kinds of attention with a rule per layer, for another number of layers than the model has of that kind."""
    sites = find_sites(model, config)
    for kind in config.kinds:
        listed, layers = config.layers_listed(kind), len({site.layer for site in sites if site.kind == kind})
        if listed and layers not in (0, listed):
            total = getattr(model.config, "num_hidden_layers", None) or 0
            note = f" (of {total}: layers that share a module count once, layers without attention not at all)"
            count = f"{layers} of them{note if total > layers else ''}"
            entries = "1 layer" if listed == 1 else f"{listed} layers"
            yield f"attn[{kind!r}] lists {entries}, {type(model).__name__} has {count}"


def check_heads_are_here(dense: PreTrainedModel, config: SparseConfig) -> None:
    """Refuse settings of attention heads, some of which other processes have.

    Raises:
        ValueError: tensor parallelism divides the model already, and a setting is learned or given for each head.
    """
    by_head = any(isinstance(value, PerHead) for each in config.attention_maps for _, value in each.settings)
    if divides_heads(dense) and (config.is_learned or by_head):
        raise ValueError(
            f"tensor parallelism has divided the attention heads of this {type(dense).__name__}, and each process "
            "knows its own alone: give one number for all heads, or make the model sparse in one process, save it, "
            "and load it divided"
        )


def check_learned(model: nn.Module, dense: PreTrainedModel, config: SparseConfig) -> None:
    """Refuse settings that could not be learned, or would not be saved.

    Raises:
        ValueError: parts of the model are offloaded, it is inside a PEFT model, or fully_shard has divided it.
    """
    if not config.is_learned:
        return
    if any(hasattr(module, "set_requires_gradient_sync") for module in dense.modules()):  # an FSDPModule
        raise ValueError(
            f"this {type(dense).__name__} is divided by fully_shard, and gradients of settings that are learned from "
            "now on would not be averaged: make the model sparse before fully_shard, or give numbers"
        )
    if hasattr(dense, "_hf_hook") and any(p.is_meta for p in dense.parameters()):
        raise ValueError(
            f"parts of this {type(dense).__name__} are offloaded, where nothing can be learned; load "
            "it without offloading, or give a number"
        )
    if model is not dense:
        raise ValueError(
            "PEFT would not save a setting that is learned in a model it holds already: make the model sparse first, "
            'then get_peft_model with the setting among modules_to_save, as modules_to_save=["sparse_alpha"]'
        )
