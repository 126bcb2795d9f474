"""What must hold of the models inside a sparse model when they are called, changed or saved by themselves."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_sparse import is_sparse, sparse_config, sparsify, unsparsify
from hf_sparse.attention import attention_sites, observe
from tests.sweep.checks import CheckFailed
from tests.sweep.deliveries import Arguments, as_passed

Calls = dict[str, tuple[tuple, dict[str, Any]]]


@contextmanager
def calls_of(parts: dict[str, nn.Module]) -> Iterator[Calls]:
    """The first call of every part, as the whole makes it."""
    calls: Calls = {}

    def before(path: str) -> Any:
        return lambda _, args, kwargs: calls.setdefault(path, as_passed((args, kwargs))) and None

    hooks = [part.register_forward_pre_hook(before(path), with_kwargs=True) for path, part in parts.items()]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def check_inside(model: Any, inputs: Arguments, attention: bool, head: bool) -> str:
    """Every model inside a sparse model is sparse by itself exactly where it has sparse attention or the head."""
    parts = {
        path: part for path, part in model.named_modules() if isinstance(part, PreTrainedModel) and part is not model
    }
    if not parts or not (attention or head):
        return "no models inside"
    sparsify(model, attn="entmax15" if attention else None, head="entmax15" if head else None, example=inputs)
    try:
        with torch.no_grad(), calls_of(parts) as calls:
            model(**inputs)
        sites = [site.path for _, site in attention_sites(model)]
        of_parts = {path: [site for site in sites if site.startswith(f"{path}.")] for path in parts}
        called = [_check_part(model, path, of_parts[path], head, calls) for path in parts]
        kinds = {(type(part), id(part.config)): part for part in parts.values() if is_sparse(part)}
        problems = [(part, problem) for part in kinds.values() if (problem := _saving_problem(part))]
    finally:
        unsparsify(model)
    for part, problem in problems:
        if _dense_comes_back(part):
            raise CheckFailed(f"inside: saved {type(part).__name__}: {problem}"[:300])
    return f"yes: {len(parts)}, {sum(called)} of them called"


def _check_part(model: Any, path: str, sites: list[str], head: bool, calls: Calls) -> bool:
    """Check one part; whether it could be called by itself."""
    part: Any = model.get_submodule(path)
    name = f"inside: {type(part).__name__} at {path!r}"
    has_head = head and part.get_output_embeddings() is model.get_output_embeddings()
    if is_sparse(part) != bool(sites or has_head):
        raise CheckFailed(f"{name} has {len(sites)} sites and is_sparse says {is_sparse(part)}")
    if not sites:
        return False
    if not _refused(part.set_attn_implementation, "eager"):
        raise CheckFailed(f"{name}: attention is made dense by set_attn_implementation")
    if path not in calls:
        return False
    args, kwargs = calls[path]
    with torch.no_grad(), observe(part) as counts:
        try:
            part(*as_passed(args), **as_passed(kwargs))
        except Exception:  # noqa: BLE001
            return False
    if not any(count.calls for count in counts.values()):
        return False
    named = part.config._attn_implementation
    part.config._attn_implementation_internal = "sdpa"
    try:
        if not _refused(part, *as_passed(args), **as_passed(kwargs)):
            raise CheckFailed(f"{name}: called by itself it is dense where its configuration says so")
    finally:
        part.config._attn_implementation_internal = named
    return True


def _refused(function: Any, *args: Any, **kwargs: Any) -> bool:
    try:
        with torch.no_grad():
            function(*args, **kwargs)
    except (ValueError, RuntimeError) as error:
        return "sparse attention" in str(error)
    return False


def _saving_problem(part: Any) -> str | None:
    """How a part that was saved by itself differs from what comes back, or None."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            part.save_pretrained(folder)
            back = part._dense_class.from_pretrained(folder)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    if is_sparse(back) and sparse_config(back) == sparse_config(part):
        return None
    found = sparse_config(back).to_dict() if is_sparse(back) else "dense"
    return f"{sparse_config(part).to_dict()} comes back {found}"


def _dense_comes_back(part: Any) -> bool:
    """Whether a dense part can be saved and loaded by itself at all: some need the whole, or share its weights."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            part.save_pretrained(folder)
            type(part).from_pretrained(folder)
    except Exception:  # noqa: BLE001
        return False
    return True
