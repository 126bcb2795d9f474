"""A look at a model before it is made sparse: what would change, what is refused, and whether it stays sound."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..attention import attention_sites
from ..cache_name import CACHE, OLD_NAME
from ..config import MapConfig
from .attach import kept_configs
from .audit import CHECKS, with_arguments
from .cold_start import cold_start
from .distribution import distribution
from .dry_run import DryRun, as_it_runs, dry_run, quiet_evaluation
from .example import NoExampleError, example_inputs
from .find import check_dense, sparse_state
from .sparsify import sparsify, unsparsify

# The keyword arguments of a forward call.
Inputs = Mapping[str, Any]

# Largest relative difference that rounding explains, by dtype.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Diagnosis:
    """The findings of ``doctor``.

    Attributes:
        model: the model's class.
        changed: how many modules would change, by class, kind of attention and way of reaching them ("interface" or
            "inline").
        refused: what ``sparsify`` refuses, in its own words.
        checks: each check with what came of it; those that fail begin with "no:"; others say "yes" or a remark.
    """

    model: str
    changed: dict[tuple[str, str, str], int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    checks: dict[str, str] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Whether nothing was refused and no check failed."""
        return not self.refused and not any(found.startswith("no:") for found in self.checks.values())

    def __str__(self) -> str:
        lines = [f"{self.model}: {'sound' if self.sound else 'not sound'}"]
        for (name, kind, way), count in self.changed.items():
            lines.append(f"  would change  {count} x {name} ({kind}, {way})")
        lines += [f"  refused       {reason}" for reason in self.refused]
        lines += [f"  {name + ':':<30}{found}" for name, found in self.checks.items()]
        return "\n".join(lines)


def doctor(
    model: nn.Module,
    attn: Any = None,
    head: Any = None,
    *,
    example: Inputs | None = None,
    progress: bool = True,
) -> Diagnosis:
    """Try ``sparsify(model, attn, head)`` and report; the model is left as it was.

    Args:
        model: a dense Transformers model, or a PEFT model around one.
        attn: as for ``sparsify``; ``"entmax15"`` where neither this nor ``head`` is given.
        head: as for ``sparsify``.
        example: keyword arguments for one forward call: for models whose input cannot be made up, and for a change of
            the output that says something about your data.
        progress: show a progress bar, one step per check, once two seconds have passed.

    Returns:
        A ``Diagnosis``; print it.

    Raises:
        TypeError: not a Transformers model.
        ValueError: the model is sparse already or has no weights, its configuration asks for tuples, an adapter around
            it is a prompt, or no input can be made up.

    Cost: about thirty forward calls on two short rows.
    """
    dense = as_it_runs(model)
    check_dense(dense)
    if attn is None and head is None:
        attn = "entmax15"
    found = Diagnosis(type(dense).__name__)
    steps = (_ATTENTION_STEPS if attn is not None else 0) + (head is not None)
    with (
        kept_configs(dense),
        quiet_evaluation(dense),
        tqdm(desc="doctor", total=steps, disable=not progress, delay=2.0) as bar,
    ):
        if attn is not None:
            _attention(dense, attn, example, found, bar)
        if head is not None:
            _head(dense, head, example, found)
            bar.update()
    return found


_ATTENTION_STEPS = 6


def _attention(model: PreTrainedModel, attn: object, example: Inputs | None, found: Diagnosis, bar: tqdm) -> None:
    measures: dict[str, Callable] = {"causal": causality, "cached equals uncached": cache_difference}
    # Before the dense model runs here: what is refused may be a model that running changes.
    with _sparse(model, found, attn=attn, example=example) as reached:
        if not reached:
            return
        inputs = dict(example_inputs(model, length=8) if example is None else example)
        for part, site in attention_sites(model):
            key = type(part).__name__, site.kind, "inline" if site.inline else "interface"
            found.changed[key] = found.changed.get(key, 0) + 1
        bar.update()
        _report_run(dry_run(model, with_arguments(model, inputs)), found)
        sparse = logits_of(model, inputs)
        bar.update()
        found.checks["finite logits"] = "yes" if bool(sparse.isfinite().all()) else "no: some are not finite"
        after = {name: measure(model, inputs) for name, measure in measures.items()}
        bar.update()
    own = logits_of(model, inputs)
    is_logits = model.get_output_embeddings() is not None
    found.checks["output without training"] = f"changes by {100 * relative_change(sparse, own, is_logits):.2g} %"
    bar.update()
    tolerance = TOLERANCE[own.dtype]
    for name, measure in measures.items():
        found.checks[name] = _compare(measure(model, inputs), after[name], tolerance)
    bar.update()
    with _sparse(model, found, attn="softmax", example=inputs):
        parity = difference(logits_of(model, inputs), own)
    found.checks["alpha = 1 is the model's own"] = _compare(0.0, parity, tolerance)
    again = torch.equal(logits_of(model, inputs), own)
    found.checks["undone bit-equal"] = "yes" if again else "no: the logits are not those of before"
    bar.update()


def _report_run(record: DryRun, found: Diagnosis) -> None:
    """The checks of ``sparsify`` on a run of the sparse model, and how sparse it was."""
    for name, check in CHECKS.items():
        problem = check(record)
        found.checks[name] = "yes" if problem is None else f"no: {problem}"
    counts = record.counts.values()
    num_seen = sum(count.calls > 0 for count in counts)
    if 0 < num_seen < len(counts):
        found.checks["attention reached"] = (
            f"{num_seen} of {len(counts)} modules; give an example that uses the others too"
        )
    rows, keys = sum(count.rows for count in counts), sum(count.nonzero for count in counts)
    found.checks["keys with weight"] = f"{keys / max(rows, 1):.1f} per query, mean over the example"


def _head(model: PreTrainedModel, head: object, example: Inputs | None, found: Diagnosis) -> None:
    with _sparse(model, found, head=head, example=example) as reached:
        if reached:
            inputs = example_inputs(model, length=8) if example is None else example
            mass = logits_of(model, {**inputs, "log_probs": True}).exp().sum(-1)
            error = float((mass - 1).abs().max())
            found.checks["head sums to one"] = _compare(0.0, error, 1e-4)
            scores = logits_of(model, {**inputs, "log_probs": False})
            found.checks["targets in the support"] = _start(sparse_state(model).head, scores)


def _start(map_config: MapConfig, scores: Tensor) -> str:
    """How training from scratch would start: with most targets possible, or with advice.

    Before training they are where any class is. A model is untrained where softmax of its logits has a perplexity
    above half of the number of classes.
    """
    vocab_size = scores.shape[-1]
    log_p = scores.float().log_softmax(-1)
    entropy = float(-(log_p.exp() * log_p).sum(-1).mean())
    missed = float((distribution(map_config, scores) == 0).float().mean())
    if missed <= 0.5:
        return "yes"
    if entropy <= math.log(vocab_size / 2):
        return "not all, as it should be in a trained model"
    return cold_start(map_config, missed, vocab_size) or f"{1 - missed:.0%} of them, until training brings in more"


@contextmanager
def _sparse(model: PreTrainedModel, found: Diagnosis, **settings: Any) -> Iterator[bool]:
    """The model made sparse inside the block, where that is not refused."""
    try:
        sparsify(model, **settings)
    except NoExampleError:
        raise
    except (ValueError, NotImplementedError) as refusal:
        found.refused.append(str(refusal))
        yield False
        return
    try:
        yield True
    finally:
        unsparsify(model)


def _compare(dense: float | None, sparse: float | None, tolerance: float) -> str:
    if dense is None or sparse is None:
        return "not checked: the model does not take such input"
    if dense > tolerance:
        return "not a property of the dense model"
    return f"yes (difference {sparse:.0e})" if sparse <= tolerance else f"no: difference {sparse:.0e}"


def logits_of(model: PreTrainedModel, inputs: Inputs) -> Tensor:
    """The model's logits, or the first floating-point tensor it returns. Drawn noise is the same at every call.

    A backbone returns a tuple of feature maps: the last of them has seen all layers.

    Raises:
        TypeError: the model returns no floating-point tensor.
    """
    torch.manual_seed(0)
    with torch.no_grad():
        output = model(**inputs)
    logits = output.get("logits")
    values = [logits] if torch.is_tensor(logits) else output.values()
    for value in values:
        tensor = value[-1] if isinstance(value, tuple) and value else value
        if torch.is_tensor(tensor) and tensor.is_floating_point():
            return tensor
    raise TypeError(f"{type(model).__name__} returns no floating-point tensor to compare: {', '.join(output)}")


def difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest finite entry of ``other``.

    Infinite where shapes differ, or where an entry is not finite in one of them; an infinity of both is no difference
    (logits of classes that are ruled out).

    >>> difference(torch.tensor([1.0, -torch.inf]), torch.tensor([2.0, -torch.inf]))
    0.5
    """
    if one.shape != other.shape:
        return float("inf")
    finite = other.isfinite()
    if not (one[finite].isfinite().all() and torch.equal(one[~finite], other[~finite])):
        return float("inf")
    one, other = one[finite], other[finite]
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-12)) if one.numel() else 0.0


def relative_change(changed: Tensor, own: Tensor, is_logits: bool) -> float:
    """The norm of the change of an output, relative to the norm of that output.

    Args:
        changed: the output after the change, of any shape.
        own: the output before it, of the same shape.
        is_logits: leave out what is constant over the last axis, which softmax ignores.

    >>> relative_change(torch.tensor([4.0, 6.0]), torch.tensor([2.0, 0.0]), is_logits=True)
    2.0
    """
    change, size = (changed - own).double(), own.double()
    if is_logits:
        change, size = (x - x.mean(-1, keepdim=True) for x in (change, size))
    return float(change.norm() / size.norm().clamp(min=1e-12))


def _tokens(model: PreTrainedModel, inputs: Inputs) -> tuple[str, int] | None:
    """The name of the tokens that logits answer to, and how many there are; None where there are none."""
    key = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    if key not in inputs or inputs[key].dim() != 2 or inputs[key].shape[1] < 4:
        return None
    logits = logits_of(model, inputs)
    length = inputs[key].shape[1]
    return (key, length) if logits.dim() == 3 and logits.shape[1] == length else None


def causality(model: PreTrainedModel, inputs: Inputs) -> float | None:
    """The largest move of earlier logits when the last two tokens change places.

    Args:
        model: any model.
        inputs: keyword arguments for one forward call.

    Returns:
        The largest relative difference, None where logits do not answer to tokens.
    """
    tokens = _tokens(model, inputs)
    if tokens is None:
        return None
    key, length = tokens
    swapped = torch.cat([inputs[key][:, :-2], inputs[key][:, -2:].flip(1)], dim=1)
    one, other = logits_of(model, inputs), logits_of(model, {**inputs, key: swapped})
    return difference(other[:, : length - 2], one[:, : length - 2])


def _without_last_two(inputs: Inputs, key: str, length: int) -> dict[str, Any]:
    """The other arguments for a call on all but the last two tokens of ``key``."""
    rest = {name: value for name, value in inputs.items() if name not in (key, "labels", CACHE, OLD_NAME)}
    if key != "input_ids":
        return rest
    rest.pop("attention_mask", None)
    for name, value in rest.items():
        if torch.is_tensor(value) and value.shape == inputs[key].shape:  # one entry per token
            rest[name] = value[:, : length - 2]
    return rest


def cache_difference(model: PreTrainedModel, inputs: Inputs) -> float | None:
    """The largest distance between logits of step-by-step decoding with a cache and those of one call.

    Positions of padding do not count.

    Args:
        model: any model.
        inputs: keyword arguments for one forward call.

    Returns:
        The largest relative difference, None where the model returns no cache or logits do not answer to tokens.
    """
    tokens = _tokens(model, inputs)
    takes = inspect.signature(type(model).forward).parameters
    if tokens is None or not {CACHE, "use_cache"} <= set(takes):
        return None
    key, length = tokens
    rest = _without_last_two(inputs, key, length)
    given = inputs.get("attention_mask") if key == "input_ids" else None
    mask = given if torch.is_tensor(given) and given.dim() == 2 else None
    cache, steps, seen = None, [], 0
    for ids in (inputs[key][:, : length - 2], *inputs[key][:, length - 2 :].split(1, dim=1)):
        seen += ids.shape[1]
        padding = {} if mask is None else {"attention_mask": mask[:, :seen]}
        torch.manual_seed(0)
        with torch.no_grad():
            output = model(**rest, **padding, **{key: ids, CACHE: cache}, use_cache=True)
        cache = output.get(CACHE)
        if cache is None:
            return None
        steps.append(output.logits)
        if key == "input_ids":  # images and sounds are in the cache now
            rest = {name: value for name, value in rest.items() if name.startswith("encoder_")}
    counts = torch.ones_like(inputs[key], dtype=torch.bool) if mask is None else mask.bool()
    return difference(torch.cat(steps, dim=1)[counts], logits_of(model, inputs)[counts])
