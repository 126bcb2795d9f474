"""Attention modules that were put into a sparse model after it was made sparse: they would run dense."""

from __future__ import annotations

import torch
from torch import nn

from ..attention.find import is_attention
from ..attention.site import SITE
from ..fertility.source import SourceFertility

Children = list[tuple[nn.Module, dict[str, nn.Module | None]]]


def check_late_attention(model: nn.Module, known: Children) -> Children:
    """Refuse a model that holds attention which ``sparsify`` never saw.

    Args:
        model: a model with sparse attention.
        known: what the last call for this model returned; empty at first.

    Returns:
        The modules on the paths to its attention, with the children they have. While those stay the same, as they do
        from call to call, nothing else is looked at.

    Raises:
        RuntimeError: such a module.
    """
    if known and all(module._modules == children for module, children in known):
        return known
    return _looked_through(model)


def refuse_late_attention(model: nn.Module) -> None:
    """``check_late_attention`` for a model that is being compiled, where it looks once.

    What was compiled runs for the modules that it was compiled for alone: Dynamo compiles again for others. So the
    result is a constant of the graph, and no call has to compare a dictionary for every module.

    Raises:
        RuntimeError: attention which ``sparsify`` never saw.
    """
    problem = _problem(model)
    if problem:
        raise RuntimeError(problem)


@torch.compiler.assume_constant_result
def _problem(model: nn.Module) -> str:
    try:
        _looked_through(model)
    except RuntimeError as error:
        return str(error)
    return ""


def _looked_through(model: nn.Module) -> Children:
    owners: dict[int, nn.Module] = {}
    predictors = [f"{path}." for path, module in model.named_modules() if isinstance(module, SourceFertility)]
    for path, module in model.named_modules():
        if any(map(path.startswith, predictors)):  # models of their own
            continue
        if SITE in module.__dict__:
            owners |= {id(owner): owner for owner in _on_the_way(model, path)}
        elif is_attention(type(module)):
            raise RuntimeError(
                f"{type(module).__name__} at {path!r} was put into this {type(model).__name__} after it was made "
                "sparse and was never given a map, so that it would be dense: call unsparsify(model), put the module "
                "in, and call sparsify(model, ...) again"
            )
    return [(owner, dict(owner._modules)) for owner in owners.values()]


def _on_the_way(model: nn.Module, path: str) -> list[nn.Module]:
    """The modules from ``model`` down to the owner of the module at ``path``."""
    names = path.split(".")[:-1]
    return [model.get_submodule(".".join(names[:depth])) for depth in range(len(names) + 1)]
