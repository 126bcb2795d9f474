"""Small runs of training that tests share."""

import torch
from datasets import Dataset
from transformers import (
    Wav2Vec2Config,
)

from hf_sparse import (
    SparseTrainingArguments,
    sparsify,
)
from tests.tiny_models import tiny_model, tokens

ROWS = 8


def rows_of_uneven_length():
    """Rows whose numbers of counted targets differ, so that a mean of means is not the mean."""
    ids, labels = tokens(ROWS, 6), tokens(ROWS, 6, seed=2)
    for row in range(ROWS):
        labels[row, : row % 5] = -100
    return Dataset.from_dict({"input_ids": ids.tolist(), "labels": labels.tolist()})


def arguments(path, **options):
    settings = {"per_device_train_batch_size": ROWS, "max_steps": 1, "learning_rate": 0.1, "optim": "sgd"}
    settings |= {"max_grad_norm": 0, "lr_scheduler_type": "constant", "report_to": [], "logging_steps": 1}
    settings |= {"disable_tqdm": True, "save_strategy": "no", "seed": 0, "use_cpu": True}
    return SparseTrainingArguments(str(path), **{**settings, **options})


def trained(trainer_class, name, path, settings, **options):
    """Parameters after training, without dropout so that only the data order could differ."""
    model = tiny_model(name)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    if settings:
        sparsify(model, **settings)
    trainer = trainer_class(model, arguments(path, **options), train_dataset=rows_of_uneven_length())
    trainer.train()
    return model, trainer


def largest_change(one, other):
    return max(float((a - b).detach().abs().max()) for a, b in zip(one.parameters(), other.parameters()))


def heard(model_class, **options):
    """A dense model of sound, without a language-model head."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 9}
    sizes |= {"intermediate_size": 16, "conv_dim": (8,), "conv_kernel": (10,), "conv_stride": (5,)}
    sizes |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False}
    sizes |= {f"{part}_dropout": 0.0 for part in ("hidden", "attention", "feat_proj", "final")} | {"layerdrop": 0.0}
    return model_class(Wav2Vec2Config(**sizes, **options))


def sounds(of_rows=False):
    """Made-up sounds, with a label for each row or several in it."""
    labels = tokens(ROWS, 3, seed=2).clamp(1, 8)
    columns = {"input_values": tokens(ROWS, 60).float() / 23, "labels": labels[:, 0] if of_rows else labels}
    return Dataset.from_dict({name: value.tolist() for name, value in columns.items()})
