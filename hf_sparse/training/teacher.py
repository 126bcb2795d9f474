"""The dense model that a sparse one is held against in training: another model, or itself without what is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from transformers import PreTrainedModel

from ..functional.head_weight import num_classes
from ..model.dense_blocks import dense_attention, dense_head
from ..model.dry_run import quiet_evaluation
from ..model.example import NoExampleError, first_run
from ..model.find import is_sparse, transformers_model


def check_teacher(teacher: PreTrainedModel) -> None:
    """Refuse a teacher that is sparse itself.

    Raises:
        ValueError: it is.
        TypeError: not a Transformers model.
    """
    if is_sparse(transformers_model(teacher)):
        name = type(transformers_model(teacher)).__name__
        raise ValueError(f"the teacher, a {name}, is sparse; give a dense one, or unsparsify(teacher)")


def check_head(model: PreTrainedModel) -> None:
    """Refuse a model that has no language-model head to distil into.

    Raises:
        ValueError: it has none.
    """
    if transformers_model(model).get_output_embeddings() is None:
        name = type(transformers_model(model)).__name__
        raise ValueError(f"{name} has no language-model head to distil into; set distillation_weight=0")


def check_vocabulary(teacher: PreTrainedModel, model: PreTrainedModel) -> None:
    """Refuse a teacher whose distributions are over other tokens than those of the model that learns.

    Raises:
        ValueError: it has no language-model head, or one of another size.
    """
    expected = num_classes(transformers_model(model).get_output_embeddings())
    dense = transformers_model(teacher)
    name = type(dense).__name__
    head = dense.get_output_embeddings()
    if head is None:
        raise ValueError(f"the teacher, a {name}, has no language-model head")
    if num_classes(head) != expected:
        raise ValueError(
            f"the teacher, a {name}, has a vocabulary of {num_classes(head)}, the model one of {expected}; their "
            "distributions cannot be compared"
        )


def check_own_teacher(model: PreTrainedModel, argument: str) -> None:
    """Refuse a model that cannot teach itself: with all that is trained switched off, its output must stay.

    That holds for an adapter on frozen weights, and where only settings of the sparse maps are learned.

    Args:
        model: the sparse model, or an adapter around it.
        argument: the training argument that asks for a teacher.

    Raises:
        ValueError: part of what is trained reaches the dense output.
    """
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    try:
        inputs = first_run(transformers_model(model), None).inputs
    except NoExampleError as error:
        raise ValueError(
            f"{argument} needs a teacher: whether the model can teach itself is tried on made-up input, and there is "
            "none for this one; pass teacher=... (the dense model)"
        ) from error
    with quiet_evaluation(model), torch.enable_grad(), as_own_teacher(model):
        total = model(**inputs).logits.sum()
    gradients = torch.autograd.grad(total, list(trained.values()), allow_unused=True) if total.requires_grad else ()
    moving = [name for name, gradient in zip(trained, gradients) if gradient is not None]
    if moving and not hasattr(model, "disable_adapter"):
        raise ValueError(
            f"{argument} needs a teacher: pass teacher=... (the dense model), or train a PEFT adapter, whose "
            "base teaches it without a second copy"
        )
    if moving:
        raise ValueError(
            f"{moving[0]!r} is trained but no part of the adapter: the model cannot be its own teacher, which would "
            "change as it learns; freeze it, or pass teacher=... (the dense model)"
        )


@contextmanager
def as_own_teacher(model: PreTrainedModel) -> Iterator[None]:
    """The model as it was before it was adapted and made sparse, on the same weights."""
    adapted = model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext()
    with adapted, dense_attention(model), dense_head(model):
        yield
