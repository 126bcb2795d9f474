"""The sparse model in what a user gives: itself, inside a PEFT model, or a part; and what is refused where none is."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from ..attention.site import attention_sites
from ..config import SparseConfig
from .state import SparseState, inside_peft, state_of


def transformers_model(model: nn.Module) -> PreTrainedModel:
    """The Transformers model inside a PEFT model, or ``model`` itself.

    Raises:
        TypeError: neither of the two.
    """
    inner = inside_peft(model)
    if not isinstance(inner, PreTrainedModel):
        parts = inner.named_modules() if isinstance(inner, nn.Module) else ()
        path, inside = next(((path, part) for path, part in parts if isinstance(part, PreTrainedModel)), ("", None))
        advice = [] if inside is None else [f"give the one inside it, at {path!r}"]
        if inside is None or state_of(inside) is None:
            advice.append("make the model sparse before wrapping or compiling it")
        raise TypeError(
            f"a Transformers model (PreTrainedModel) is needed, was {type(model).__name__}; {', and '.join(advice)}"
        )
    return inner


def prompt_adapter(model: object) -> str | None:
    """The class of the adapter of a PEFT model that puts a prompt before every input; None without one."""
    adapter = getattr(model, "active_peft_config", None)
    return type(adapter).__name__ if getattr(adapter, "is_prompt_learning", False) else None


def sparse_state(model: nn.Module) -> SparseState:
    """The state of a sparse model, or of the one inside a PEFT model.

    Raises:
        ValueError: the model is dense, or sparse in a part alone.
        TypeError: not a Transformers model.
    """
    inner = transformers_model(model)
    state = state_of(inner)
    if state is None:
        check_parts(inner)
        raise ValueError(f"this {type(inner).__name__} is not sparse; call sparsify(model, ...) first")
    return state


def divides_heads(model: PreTrainedModel) -> bool:
    """Whether tensor parallelism has divided the attention heads among processes, each of which sees its own."""
    return (model.tp_size or 1) > 1


def sparse_models(model: nn.Module | None) -> list[PreTrainedModel]:
    """The sparse models in a module, outermost ones alone: itself, the one that it wraps, or its parts'."""
    if model is None:  # a trainer has none between two trials of a search for hyperparameters
        return []
    if state_of(model) is not None:
        return [transformers_model(model)]
    return [found for child in model.children() for found in sparse_models(child)]


def sparse_config(model: nn.Module) -> SparseConfig:
    """The settings of a sparse model.

    Raises:
        ValueError: the model is not sparse.
        TypeError: not a Transformers model.
    """
    return sparse_state(model).config


def is_sparse(model: nn.Module) -> bool:
    """Whether ``sparsify`` was applied to ``model`` or to a part of it (or to the model inside a PEFT model).

    A model that is sparse in a part alone has no settings: ``sparse_config`` names the part, and so does all that
    would train, save or decode the model as a dense one. An ``Ensemble`` counts as sparse too: it has settings of its
    own.

    Raises:
        TypeError: not a Transformers model.
    """
    inner = transformers_model(model)
    return state_of(inner) is not None or _lone_part(inner) is not None


def needs_forward(model: object) -> bool:
    """Whether the forward of a sparse model cannot be another: it reads the head, or gives attention its bounds."""
    state = state_of(model)
    return state is None or state.config.head is not None or state.config.is_sequential


def described(state: SparseState | None) -> str:
    """What a model is, for messages: "is dense", or "has ..." with its settings."""
    return "is dense" if state is None else f"has {state.config.to_dict()}"


def check_parts(model: PreTrainedModel) -> None:
    """Refuse a model with a part that was made sparse by itself, or a sparse layer: no settings would be saved.

    Raises:
        ValueError: there is such a part, or layer.
    """
    path = _lone_part(model)
    if path is None:
        _check_foreign_attention(model)
        return
    if type(model).forward is nn.Module.forward:  # Bark's generate calls its parts one by one
        way_out = (
            f"it has no forward call, so that the whole cannot be sparse; save the part alone, model.{path}, and put "
            f"it into a model that was loaded, model.{path} = from_pretrained(folder)"
        )
    else:
        way_out = (
            f"keep sparse_config(model.{path}).to_dict(), unsparsify(model.{path}), then sparsify the whole model "
            f"with these maps{_for_kinds(model.get_submodule(path))}"
        )
    raise ValueError(
        f"{path!r} in this {type(model).__name__} is sparse by itself, and the whole would be trained and saved as a "
        f"dense model: {way_out}"
    )


def _check_foreign_attention(model: PreTrainedModel) -> None:
    """Refuse a dense model with attention that was taken, or copied, out of a sparse one.

    Raises:
        ValueError: there is some.
    """
    if state_of(model) is not None:
        return
    sparse = {id(module) for module, site in attention_sites(model) if site.map_config is not None}
    path = next((path for path, module in model.named_modules() if id(module) in sparse), None)
    if path is not None:
        raise ValueError(
            f"{path!r} in this dense {type(model).__name__} is attention of a sparse model, and the whole would be "
            "trained and saved as a dense model: put a layer of a dense model there, of that model after unsparsify, "
            "say, and call sparsify(model, ...) on the whole"
        )


def check_whole(model: nn.Module) -> None:
    """Refuse a part of a sparse model: the whole keeps the settings, and would not know of a change.

    Raises:
        ValueError: the model is such a part.
    """
    state = state_of(model)
    if state is not None and state.whole is not None:
        name = type(transformers_model(model)).__name__
        raise ValueError(
            f"this {name} is a part of a sparse {state.whole}, which keeps and saves the settings: give the whole; or "
            f"unsparsify the whole, sparsify this {name} alone, and in the end sparsify the whole with the maps that "
            f"sparse_config(part).to_dict() has then{_for_kinds(transformers_model(model))}"
        )


def check_dense(model: PreTrainedModel) -> None:
    """Refuse a model that is sparse, or has a part that is.

    Raises:
        ValueError: it is.
    """
    if is_sparse(model):
        raise ValueError(
            f"this {type(model).__name__} is sparse already ({sparse_config(model).to_dict()}); "
            "call unsparsify(model) first, in an ensemble on each of its members"
        )


def _lone_part(model: PreTrainedModel) -> str | None:
    """The path of a model inside ``model`` that was made sparse by itself, so that the whole knows nothing of it."""
    state = state_of(model)
    if state is not None and state.whole is not None:  # a part itself, with parts that its whole knows
        return None
    known = [] if state is None else [id(part) for part in state.parts]
    for path, part in model.named_modules():
        own = state_of(part)
        if part is not model and own is not None and id(own) not in known:
            return path
    return None


def _for_kinds(part: nn.Module) -> str:
    """How the whole takes the maps of a part, whose kinds of attention it may have others besides."""
    kinds = sorted({site.kind for _, site in attention_sites(part)})
    named = ", ".join(f"{kind!r}: ..." for kind in kinds)
    return f", for the kinds of attention that the part has: attn={{{named}}}" if kinds else ""


def check_named_outputs(model: PreTrainedModel) -> None:
    """Refuse a model whose configuration asks for tuples.

    Raises:
        ValueError: it does.
    """
    if not getattr(model.config, "return_dict", True):
        raise ValueError(
            f"config.return_dict=False makes this {type(model).__name__} return tuples, in which loss and logits have "
            "no names; set model.config.return_dict = True, and pass return_dict=False in the calls that want a tuple"
        )
