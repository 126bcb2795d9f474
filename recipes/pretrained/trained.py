"""A pretrained language model trained for the fewest edges of attention at a loss close to the dense one's."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer

import hf_sparse
from hf_sparse.attention.site import learned_parameters

from ..lib.models import config_of, save
from ..lib.records import Figures, Record
from .data import windows
from .language import OF_ATTENTION, TASK, WINDOWS, loss_and_edges, rows_of, token_loss
from .part import Cells, Description, Part, Verdict, how
from .sources import load

# Settings of ``arguments``.
TRAINING = ("steps", "batch_size", "learning_rate", "dtype")
LEARNED = ("alpha", "temperature")
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj"]


def trained(settings: Any, folder: Path) -> Figures:
    """Train on the first half of a text for the fewest edges, and measure loss and edges on the second.

    With rank 0 nothing but alphas and temperatures is trained, and the dense model is the measure as it is. Otherwise
    both are trained by adapters: the dense model first, which the sparse one starts from, then both for as many steps.
    """
    dense, tokenizer = load(settings.source, "causal")
    fit, test = windows(tokenizer, Path(settings.data), settings.length, settings.rows)
    text = training_rows(tokenizer, settings)
    figures: Figures = {"dense": token_loss(dense, test), "tokens": test.numel() - len(test)}
    dense = continued(dense, text, settings, folder)
    model, example = copy.deepcopy(dense), {"input_ids": fit[:1, :32]}
    hf_sparse.sparsify(model, attn=settings.map, example=example)
    figures["swapped"] = token_loss(model, test)
    hf_sparse.calibrate(model, rows_of(fit), edges=settings.edges or None, progress=False)
    figures["calibrated"], figures["calibrated_edges"] = loss_and_edges(model, test)
    hf_sparse.learn_settings(model, LEARNED, example=example)
    model = adapted(model, settings, modules_to_save=[f"sparse_{name}" for name in LEARNED])
    budget = {"max_loss_increase": settings.increase, "distillation_weight": settings.distillation}
    options = arguments(settings, folder, **schedule(settings), **budget, settings_learning_rate=0.03)
    trainer = hf_sparse.SparseTrainer(model, options, train_dataset=text, teacher=dense)
    trainer.train()
    model = merged(model)
    figures["trained"], figures["edges"] = loss_and_edges(model, test)
    figures["continued"] = token_loss(continued(dense, text, settings, folder), test)
    save(model, tokenizer, folder)
    names = ("step", "loss_increase", "edge_price", "attention_edges")
    return {
        **figures,
        "increase": figures["trained"] / figures["continued"] - 1,
        "curve": [{name: log[name] for name in names} for log in trainer.state.log_history if "edge_price" in log],
        "train_tokens": settings.steps * settings.batch_size * settings.length,
        "config": config_of(model),
    }


def continued(model: Any, rows: Dataset, settings: Any, folder: Path) -> Any:
    """A dense model after as many steps as the sparse one is trained; itself where no weight is."""
    if settings.rank == 0:
        return model
    model = adapted(model, settings)
    Trainer(model, arguments(settings, folder, **schedule(settings)), train_dataset=rows).train()
    return merged(model)


def adapted(model: PreTrainedModel, settings: Any, **options: Any) -> Any:
    """A model that learns by adapters, whose starts follow the seed; by settings alone at rank 0.

    The adapters are in attention where its projections have the usual names, elsewhere in all linear layers.
    """
    if settings.rank == 0:
        learned = {id(weight) for weight in learned_parameters(model)}
        for weight in model.parameters():
            weight.requires_grad_(id(weight) in learned)
        return model
    torch.manual_seed(settings.seed)
    usual = set(PROJECTIONS) <= {name.rpartition(".")[2] for name, _ in model.named_modules()}
    layers = PROJECTIONS if usual else "all-linear"
    config = LoraConfig(
        r=settings.rank, lora_alpha=2 * settings.rank, target_modules=layers, task_type="CAUSAL_LM", **options
    )
    return get_peft_model(model, config)


def merged(model: Any) -> Any:
    """A model with its adapters in its weights."""
    return model.merge_and_unload().eval() if isinstance(model, PeftModel) else model.eval()


def schedule(settings: Any) -> dict[str, Any]:
    """The learning rate where a price moves, which steps have to follow to the end: settings alone keep theirs."""
    if settings.rank == 0:
        return {"lr_scheduler_type": "constant", "warmup_steps": 0}
    return {
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": 0.2},
        "warmup_steps": 0,
    }


def arguments(settings: Any, folder: Path, **options: Any) -> hf_sparse.SparseTrainingArguments:
    """How a run trains; ``options`` are added, and take precedence."""
    usual: dict[str, Any] = {
        "max_steps": settings.steps,
        "per_device_train_batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
        "bf16": settings.dtype == "bfloat16",
        "logging_steps": max(1, settings.steps // 20),
        "save_strategy": "no",
        "report_to": [],
        "seed": settings.seed,
        "use_cpu": True,
        "lr_scheduler_type": "cosine",
        "warmup_steps": settings.steps // 10,
    }
    return hf_sparse.SparseTrainingArguments(str(folder / "trainer"), **usual | options)


def training_rows(tokenizer: PreTrainedTokenizerBase, settings: Any) -> Dataset:
    """All windows of the first half of a text, each its own labels."""
    ids, _ = windows(tokenizer, Path(settings.data), settings.length, 10**9)
    return Dataset.from_dict({"input_ids": ids.tolist(), "labels": ids.tolist()})


def _cells(settings: dict[str, Any], figures: Figures) -> Cells:
    trained = f"{figures['trained']:.3f} ({figures['increase']:+.1%}) after {settings['steps']} steps"
    alike = f" after {2 * settings['steps']} steps" if settings["rank"] else ""
    weight = settings.get("distillation")  # older runs have none
    teacher = f", `distillation_weight={weight:g}`" if weight else ""
    return [
        "attention",
        f"{how(settings)}, `max_loss_increase={settings['increase']:g}`{teacher}",
        f"{1 - figures['edges']:.1%}",
        f"loss {figures['continued']:.3f}{alike}",
        f"{figures['swapped']:.3f}",
        trained,
    ]


def _ways(figures: Figures) -> dict[str, dict[str, Any]]:
    edges = {
        "dense": 1.0,
        "continued": 1.0,
        "calibrated": figures["calibrated_edges"],
        "trained": figures["edges"],
    }
    return {way: {"loss": figures[way], "zeros": 1 - kept} for way, kept in edges.items()}


def _fitted(settings: dict[str, Any], figures: Figures) -> str:
    learned = "Temperatures and alphas of the heads" + (", and adapters, were" if settings["rank"] else " were")
    alike = ", which was trained by adapters for as many steps" if settings["rank"] else "; no weight was"
    bound = f"{100 * settings['increase']:g} % above the dense model's"
    return f"{learned} trained for the fewest edges of attention at a loss at most {bound}{alike}."


def _verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    for record in records:
        figures, settings = record["figures"], record["settings"]
        adapters = f"trained by adapters for {settings['steps']} steps"
        learned = adapters if settings["rank"] else "no weight trained, only settings"
        length, edges = settings["length"], 0.12 if settings["length"] <= 256 else 0.05
        goal = f"loss within 1 %, at most {edges * 100:g} % of the edges of {length} tokens"
        yield Verdict(
            f"SmolLM2 attention, {learned}: {goal}",
            f"{figures['increase']:+.1%} at {figures['edges']:.1%}",
            figures["increase"] <= 0.01 and figures["edges"] <= edges,
        )


PART = Part(
    name="trained",
    run=trained,
    reads=(*WINDOWS, *TRAINING, "map", "edges", "rank", "increase", "distillation"),
    cells=_cells,
    description=Description(TASK, OF_ATTENTION, _ways, fitted=_fitted),
    verdicts=_verdicts,
)
