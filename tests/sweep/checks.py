"""What must hold of a sparse model, each fact first looked for in the dense one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_sparse import sparsify, unsparsify
from hf_sparse.attention.find import named_attention
from hf_sparse.attention.observer import AttentionObserver
from hf_sparse.attention.site import attention_sites, observing, trial
from hf_sparse.config import SparseConfig
from hf_sparse.functional import get_map
from hf_sparse.model.doctor import cache_difference, causality, difference, logits_of
from hf_sparse.model.dry_run import watch
from tests.sweep.parts import Call, calls_of_parts, outputs_of, widened

ABSENT = "not a property of the dense model"
SHARP = SparseConfig.parse(attn={"name": "entmax15", "temperature": 0.01})


class NoMeasureError(RuntimeError):
    """A dense model that no sparse one can be compared with."""


class CheckFailed(AssertionError):
    """A check that the dense model passes and the sparse one does not."""


class Rows(AttentionObserver):
    """What the checks ask about the weights of a site."""

    def __init__(self) -> None:
        self.calls = 0
        self.zeros = 0
        self.keys = 0
        self.most = 0.0
        self.least = 1.0

    def add(self, module: nn.Module, scores: Tensor, weights: Tensor) -> None:
        self.calls += 1
        mass = weights.double().sum(-1)
        self.zeros += int((weights == 0).sum())
        self.keys = max(self.keys, int((weights > 0).sum(-1).max()))
        self.most = max(self.most, float(mass.max()))
        filled = mass[mass > 0]
        self.least = min(self.least, float(filled.min()) if len(filled) else 1.0)
        if not weights.isfinite().all():
            raise CheckFailed("attention weights are not finite")


@contextmanager
def watching(model: nn.Module):
    sites = [site for _, site in attention_sites(model)]
    rows = {site.path: Rows() for site in sites}
    with observing((site, rows[site.path]) for site in sites):
        yield rows


def run(model: nn.Module, inputs: dict[str, Tensor], **more: Any) -> Tensor:
    return logits_of(model, {**inputs, **more})


def farthest(ones: list[Tensor], others: list[Tensor]) -> float:
    """The largest of the differences between outputs of the same calls."""
    return max(difference(one, other) for one, other in zip(ones, others, strict=True))


def as_finite(output: Tensor, dense: Tensor) -> bool:
    """Whether an output is finite wherever the dense one is; all of it, if a model predicts its length anew."""
    finite = output.isfinite()
    return bool((finite if output.shape != dense.shape else finite >= dense.isfinite()).all())


def eager(model: nn.Module) -> Callable[[], None]:
    """Let a dense model compute its own eager attention; returns what undoes it."""
    before = [
        (part.config, part.config._attn_implementation)
        for part in model.modules()
        if isinstance(part, PreTrainedModel)
    ]
    for config, _ in before:
        config._attn_implementation_internal = "eager"

    def undo() -> None:
        for config, implementation in before:
            config._attn_implementation_internal = implementation

    return undo


def padding(model: nn.Module, inputs: dict[str, Tensor]) -> float | None:
    """How far logits move when three padding tokens follow the input."""
    if "attention_mask" not in inspect.signature(type(model).forward).parameters or "input_ids" not in inputs:
        return None
    ids = inputs["input_ids"]
    if ids.dim() != 2:
        return None
    pad = {
        name: nn.functional.pad(x, (0, 3))
        for name, x in inputs.items()
        if torch.is_tensor(x) and x.shape == ids.shape and not name.startswith("decoder_")
    }
    mask = nn.functional.pad(torch.ones_like(ids), (0, 3))
    alone = run(model, inputs, attention_mask=torch.ones_like(ids))
    among = run(model, {**inputs, **pad}, attention_mask=mask)
    if alone.dim() == 3 and among.shape[1] == alone.shape[1] + 3:
        among = among[:, : alone.shape[1]]
    return difference(among, alone)


def backward(model: nn.Module, inputs: dict[str, Tensor]) -> float | None:
    """0 where all gradients are finite."""
    model.zero_grad()
    output = model(**inputs)
    values = [output.get("logits"), *output.values()]
    logits = next(value for value in values if torch.is_tensor(value) and value.is_floating_point())
    logits.float().pow(2).mean().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return 0.0 if gradients and all(gradient.isfinite().all() for gradient in gradients) else float("inf")


PROPERTIES: dict[str, tuple[Callable, float]] = {
    "causality": (causality, 1e-5),
    "padding": (padding, 1e-4),
    "cache": (cache_difference, 1e-4),
    "backward": (backward, 0.0),
}


def measured(check: Callable, model: nn.Module, inputs: dict[str, Tensor]) -> tuple[float | None, str]:
    """A distance, or why there is none. A dense model may not take what a check passes."""
    try:
        return check(model, inputs), "nothing to check"
    except CheckFailed:
        raise
    except Exception as error:  # noqa: BLE001
        return None, f"{type(error).__name__}: {error}"[:150]


def has_zeros(attn: str) -> bool:
    """Whether a map gives zeros to scores that are not masked."""
    return bool((get_map(attn).function(torch.tensor([8.0, -8.0])) == 0).any())


def check_attention(model: nn.Module, inputs: dict[str, Tensor], attn: str = "entmax15") -> dict[str, Any]:
    """Put the map ``attn`` into the attention of ``model`` and check it; the model is dense again afterwards.

    Attention that the forward call of the whole leaves out is checked in calls of the parts that have it.

    Raises:
        ValueError: the model was refused.
        CheckFailed: a check does not hold.
        NoMeasureError: the dense model gives another result each time.
    """
    sparsify(model, attn="softmax", example=inputs)
    with watching(model) as visible:
        run(model, inputs)
    idle = {path for path, row in visible.items() if not row.calls}
    calls = calls_of_parts(model, idle)
    with watching(model) as visible:
        outputs_of(model, inputs, calls)
    unsparsify(model)
    dense = outputs_of(model, inputs, calls)
    if farthest(outputs_of(model, inputs, calls), dense) > 0:
        raise NoMeasureError("the dense model is not deterministic")
    undo = eager(model)
    before = {name: measured(check, model, inputs) for name, (check, _) in PROPERTIES.items()}
    undo()

    checks: dict[str, str] = {}
    sparsify(model, attn=attn, example=inputs)
    sites = [site for _, site in attention_sites(model)]
    if not all(site.map_config for site in sites):
        raise CheckFailed("a site kept softmax")
    with watching(model) as rows:
        sparse = outputs_of(model, inputs, calls)
    left = softmax_left(model, inputs, calls)
    if not all(map(as_finite, sparse, dense)):
        raise CheckFailed("outputs are not finite")
    reached = {path: row for path, row in rows.items() if row.calls}
    if get_map(attn).normalized:
        checks["rows sum to one"] = check_mass(model, reached)
    zeros = {path: row.zeros - visible[path].zeros for path, row in reached.items()}
    together = [("the model", set(reached) - idle), *((call.name(model), call.sites & idle) for call in calls)]
    for name, paths in together:
        if has_zeros(attn) and sum(zeros[path] for path in paths) <= 0:
            raise CheckFailed(f"no weight became zero in {name}")
    several = {path for path in reached if visible[path].keys > 1}
    flat = [site for site in sites if has_zeros(attn) and site.path in several and zeros[site.path] <= 0]
    checks["exact zeros"] = f"in {len(several) - len(flat)} of {len(several)} modules"
    if flat:
        choices = {site.path: SHARP.attention(site.kind, site.layer) for site in flat}
        with trial(model, choices), watching(model) as sharper:
            outputs_of(model, inputs, calls)
        flat = [site for site in flat if sharper[site.path].zeros <= visible[site.path].zeros]
        checks["exact zeros"] += ", and in the others once their scores are apart"
    for name, (check, tolerance) in PROPERTIES.items():
        value, reason = before[name]
        if value is None or value > tolerance:
            checks[name] = (
                f"{ABSENT} ({reason})"
                if value is None and reason != "nothing to check"
                else ("nothing to check" if value is None else ABSENT)
            )
            continue
        after = check(model, inputs)
        checks[name] = "yes"
        if after is not None and tolerance < after < float("inf"):  # rounding, or something wrong: float64 tells
            with in_float64(model):
                after = check(model, widened(inputs))
            checks[name] = "yes, in float64"
        if after is None or after > tolerance:
            raise CheckFailed(f"{name}: moved by {after}")
    unsparsify(model)
    if farthest(outputs_of(model, inputs, calls), dense) > 0:
        raise CheckFailed("unsparsify does not restore the outputs")
    checks["undone bit-equal"] = "yes"

    parity = parity_of_softmax(model, inputs, calls)
    checks["alpha=1 is eager"] = "yes"
    if 1e-5 < parity < float("inf"):  # rounding, or something wrong: float64 tells
        with in_float64(model):
            parity = parity_of_softmax(model, widened(inputs), [call.in_float64() for call in calls])
        checks["alpha=1 is eager"] = "yes, in float64"
    if parity > 1e-5:
        raise CheckFailed(f"alpha=1 is {parity:.1e} from the model's own eager attention")
    kinds = {site.inline for site in sites if rows[site.path].calls}
    result = "mixed" if len(kinds) > 1 else "inline" if True in kinds else "interface"
    return {
        "result": result,
        "sites": len(sites),
        "reached": len(reached),
        "in parts": sorted({call.name(model) for call in calls}),
        "not reached": classes(model, set(rows) - set(reached)),
        "kinds": sorted({site.kind for site in sites}),
        "one key": classes(model, set(reached) - several),
        "without zeros": classes(model, {site.path for site in flat}),
        "checks": checks,
        "softmax left alone": left,
    }


def check_mass(model: nn.Module, reached: dict[str, Rows]) -> str:
    """Check that every row of weights sums to one, or to less where a sink takes the rest."""
    if max(row.most for row in reached.values()) > 1 + 1e-5:
        raise CheckFailed("rows sum to more than one")
    if min(row.least for row in reached.values()) >= 1 - 1e-5:
        return "yes"
    if not any("sink" in name for name, _ in model.named_parameters()):
        raise CheckFailed("rows sum to less than one")
    return "at most one: attention sinks"


@contextmanager
def in_float64(model: nn.Module):
    model.double()
    configs = [part.config for part in model.modules() if isinstance(part, PreTrainedModel)]
    experts = [config._experts_implementation for config in configs]
    for config in configs:  # the fused ones know no float64
        config._experts_implementation_internal = "eager"
    try:
        yield
    finally:
        for config, implementation in zip(configs, experts):
            config._experts_implementation_internal = implementation
        model.float()


def parity_of_softmax(model: nn.Module, inputs: dict[str, Tensor], calls: list[Call]) -> float:
    """How far the model with entmax of alpha = 1 is from its own attention: eager, or what it takes by default.

    Eager attention of Transformers adds boolean masks to the scores (the text tower of Grounding DINO).
    """
    default = outputs_of(model, inputs, calls)
    undo = eager(model)
    own = outputs_of(model, inputs, calls)
    undo()
    sparsify(model, attn={"name": "entmax", "alpha": 1.0}, example=inputs)
    softmax = outputs_of(model, inputs, calls)
    unsparsify(model)
    return min(farthest(softmax, own), farthest(softmax, default))


def classes(model: nn.Module, paths: Iterable[str]) -> list[str]:
    return sorted({type(model.get_submodule(path)).__name__ for path in paths})


def softmax_left(model: nn.Module, inputs: dict[str, Tensor], calls: list[Call]) -> list[str]:
    """Classes of modules that still compute a softmax over a last axis: routers, output heads.

    Raises:
        CheckFailed: one of them is attention.
    """
    with watch(model) as record:
        outputs_of(model, inputs, calls)
    sparse = {site.path for _, site in attention_sites(model) if not site.inline}
    left = {type(module) for path, module in record.softmaxes.items() if path not in sparse}
    if missed := sorted(cls.__name__ for cls in left if named_attention(cls)):
        raise CheckFailed(f"{missed[0]} computed a softmax of its own")
    return sorted(cls.__name__ for cls in left)
