"""How the logits of a sparse model are read: as probabilities, as raw scores, as log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from ..functional.arguments import check_flag
from ..functional.log_zero import sum_to_one
from ..functional.rows import check_scores, upcast
from .distribution import distribution
from .find import sparse_state


def probabilities(model: nn.Module, logits: Tensor, *, log_probs: bool | None = None) -> Tensor:
    """The next-token distribution that ``generate`` reads, from a sparse model's logits.

    Args:
        model: a sparse model.
        logits: ``output.logits`` (..., V).
        log_probs: whether they are log-probabilities (a call without labels) or raw scores (with labels, or in a
            block of ``raw_scores``). None tells by the exponentials of the rows without NaN: those of
            log-probabilities sum to one in every row. Half precision tells them by their zeros.

    Returns:
        Probabilities (..., V) that sum to one, float32 (float64 for float64 logits): softmax where the head is dense,
        alpha-ReLU weights divided by their sum; NaN in rows with NaN.

    Raises:
        ValueError: the model is not sparse; ``log_probs=None``, and of a sparse head at least half of the rows are
            log-probabilities but not all.
        TypeError: not a Transformers model, or logits that are no floating-point tensor.
    """
    state = sparse_state(model)
    check_scores(logits, -1)
    if log_probs is None:
        log_probs = state.config.head is not None and _are_log_probs(logits)
    check_flag("log_probs", log_probs)
    return upcast(logits).softmax(-1) if log_probs else distribution(state.head, logits)


def _are_log_probs(logits: Tensor) -> bool:
    """Whether rows of a sparse head's logits (..., V) are log-probabilities, all of them that have no NaN.

    Raises:
        ValueError: at least half of them are, and not all.
    """
    in_row = sum_to_one(logits)[~logits.isnan().any(-1)]
    count, total = int(in_row.sum()), in_row.numel()
    if total / 2 <= count < total:
        raise ValueError(
            f"{count} of {total} rows of logits are log-probabilities, and the others are not, as if tokens of theirs "
            "were masked: say with log_probs=True or log_probs=False what they are"
        )
    return count == total


@contextmanager
def raw_scores(model: nn.Module) -> Iterator[None]:
    """Run the block with raw scores in ``output.logits`` of a sparse head, also in calls without labels.

    For losses and measures that take scores: softmax of them is not the distribution of the model. With a dense head
    nothing changes. ``generate`` is refused inside. Other threads that call the model meanwhile are not affected.

    Args:
        model: a sparse model, perhaps wrapped by PEFT.

    Raises:
        ValueError: the model is not sparse.
        TypeError: not a Transformers model.

    >>> import torch
    >>> from hf_sparse import sparsify
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    >>> model = sparsify(LlamaForCausalLM(LlamaConfig(vocab_size=20, **sizes)), head="sparsemax")
    >>> ids = torch.tensor([[1, 2, 3]])
    >>> with raw_scores(model):
    ...     scores = model(ids).logits
    >>> bool(torch.allclose(probabilities(model, scores), model(ids).logits.exp(), atol=1e-6))
    True
    >>> with log_probabilities(model):
    ...     log_p = model(ids, labels=ids).logits
    >>> bool(torch.equal(log_p, model(ids).logits))
    True
    """
    with _read_as(model, log_probs=False):
        yield


@contextmanager
def log_probabilities(model: nn.Module) -> Iterator[None]:
    """Run the block with log-probabilities in ``output.logits`` of a sparse head, also in calls with labels.

    For code that passes labels and reads the logits beside the loss. Arguments, errors, an example and what it means
    for other threads are those of ``raw_scores``.
    """
    with _read_as(model, log_probs=True):
        yield


@contextmanager
def _read_as(model: nn.Module, *, log_probs: bool) -> Iterator[None]:
    state = sparse_state(model)
    with ExitStack() as readings:
        for each in (state, *state.parts):
            readings.enter_context(each.readings.set(log_probs))
        yield
