"""Settings, models and training of the language-model recipe."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, NamedTuple

import peft
import torch
from datasets import Dataset
from torch import Tensor
from transformers import GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerFast

import hf_sparse
from hf_sparse import SparseSeq2SeqTrainer
from hf_sparse.functional import balanced_temperature

from ..lib.batches import collate
from ..lib.models import NUM_HEADS, small_gpt2
from ..lib.records import sibling
from ..lib.settings import Settings, check_one_of, check_positive, setting
from ..lib.training import annealing, train
from .curve import Curve
from .data import blocks, learn_tokenizer, read_text
from .likelihood import LikelihoodTrainer

DENSE_RUN = "softmax"  # conversions resume from it
CONVERSIONS = ("", "none", "lora", "full")
HEADS: dict[str, Any] = {
    "softmax": None,
    "sparsemax": "sparsemax",
    "entmax15": "entmax15",
    "entmax13": {"name": "entmax", "alpha": 1.3},
    "entmax12": {"name": "entmax", "alpha": 1.2},
    "entmax11": {"name": "entmax", "alpha": 1.1},
    "alpha_relu": "alpha_relu",
}
# Heads with an alpha and a temperature to choose.
ENTMAX = [name for name, head in HEADS.items() if head and hf_sparse.SparseConfig.parse(head=head).head.is_entmax]


@dataclasses.dataclass(frozen=True)
class LanguageSettings(Settings):
    """One model, trained from scratch or made sparse after ``steps`` with softmax."""

    data: str = setting("scenes", paper="WikiText-2, WikiText-103, BookCorpus", where="Section 5.1")
    head: str = setting("softmax", paper="softmax, or entmax with alpha tuned", where="Section 5.1")
    temperature: float = setting(0.0)  # of the head; 0: "auto" from scratch, 1 in conversions
    start_alpha: float = setting(0.0)  # that an entmax head starts at, with its temperature "auto"; 0: its own
    over: float = setting(0.8)  # share of the steps on the way from there
    likelihood: float = setting(0.0)  # weight of its logarithm in the loss, in the second half; see likelihood.py
    attention: str = setting("softmax", paper="softmax")
    conversion: str = setting("", paper="GPT-2 medium, fine-tuned", where="Section 5.1")
    conversion_steps: int = setting(100)
    lora_rank: int = setting(8)
    vocabulary: int = setting(2000, paper="50,257", where="GPT-2")
    width: int = setting(96, paper="1,024", where="GPT-2 medium")
    layers: int = setting(2, paper="24", where="GPT-2 medium")
    context: int = setting(64)
    steps: int = setting(400)
    batch_size: int = setting(16)
    lr: float = setting(6e-3)
    embedding_lr: float = setting(1.0)  # multiple of lr for the embedding and the head's matrix
    warmup: float = setting(0.1)  # share of the steps in which the learning rate rises
    adam_beta2: float = setting(0.999)
    adam_epsilon: float = setting(1e-8)
    weight_decay: float = setting(0.0)
    tied: bool = setting(True, paper="tied", where="GPT-2")  # whether the embedding is the head's matrix, too
    offsets: bool = setting(False)  # whether scores have offsets, which start at what gives each token its frequency
    lora_lr: float = setting(3e-3)
    uniform: float = setting(0.01)
    span: int = setting(32, paper="16, 32, 128, 512")
    test_rows: int = setting(150)
    dev_rows: int = setting(150)  # held-out rows after those, to choose settings by
    prompts: int = setting(32)
    prompt: int = setting(16)
    report_to: str = setting("none")

    def __post_init__(self) -> None:
        check_one_of(self, head=HEADS, conversion=CONVERSIONS)
        check_positive(self, "conversion_steps", "lora_rank", "width", "layers", "steps", "batch_size")
        check_positive(self, "vocabulary", "span", "test_rows", "prompts", "prompt", "embedding_lr", "adam_epsilon")
        if self.width % NUM_HEADS:
            raise ValueError(f"width must be a multiple of {NUM_HEADS}, the heads of attention, was {self.width}")
        if self.prompt >= self.context:
            raise ValueError(f"prompt must be below context, {self.context}, was {self.prompt}")
        for name in ("temperature", "dev_rows", "likelihood", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, was {getattr(self, name)}")
        for name in ("warmup", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, was {getattr(self, name)}")
        if self.offsets and self.head not in ("softmax", *ENTMAX):
            raise ValueError(f"offsets are for softmax and {', '.join(ENTMAX)}; head was {self.head!r}")
        if self.conversion and (self.offsets or not self.tied):
            raise ValueError("offsets and tied=False are for models trained from scratch, conversion must be empty")
        if self.likelihood and HEADS[self.head] is None:
            raise ValueError(f"likelihood is for sparse heads, of which softmax is none; was {self.likelihood}")
        if not 0 < self.uniform < 1:
            raise ValueError(f"uniform must be above 0 and below 1, was {self.uniform}")
        if self.start_alpha and (self.head not in ENTMAX or self.conversion):
            raise ValueError(f"start_alpha is for heads trained from scratch: {', '.join(ENTMAX)}; was {self.head!r}")
        annealing(self.start_alpha and {"alpha": self.start_alpha}, self.over)  # checks what it is given
        hf_sparse.SparseConfig.parse(attn=self.attention)


def build(settings: LanguageSettings, tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    """A fresh dense model; the same seed gives the same weights."""
    model = small_gpt2(tokenizer, settings.width, settings.layers, settings.context, settings.seed)
    if not settings.tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    if settings.offsets:
        model.lm_head.bias = torch.nn.Parameter(torch.zeros(len(tokenizer)))
    return model


def frequency_offsets(counts: Tensor, alpha: float, temperature: float) -> Tensor:
    """Scores that give each token its frequency in the training rows, with one added to every count.

    Args:
        counts: (V,), how often each token is there.
        alpha: of the head's map, 1 for softmax.
        temperature: of the head.

    Returns:
        (V,) scores: entmax of them is the frequencies, since ``p = ((alpha - 1) z / T - tau) ** (1 / (alpha - 1))``.
    """
    p = (counts + 1) / (counts + 1).sum()
    return p.log() if alpha == 1 else temperature * p ** (alpha - 1) / (alpha - 1)


def made_sparse(model: PreTrainedModel, settings: LanguageSettings) -> PreTrainedModel:
    """``model`` with the maps of a run; unchanged if all are softmax."""
    maps = {"attn": attention_of(settings), "head": head_of(settings)}
    return model if not any(maps.values()) else hf_sparse.sparsify(model, **maps)


def attention_of(settings: LanguageSettings) -> dict[str, Any] | None:
    """The map of attention with its temperature; None for softmax."""
    if settings.attention == "softmax":
        return None
    return {"name": settings.attention, "temperature": 1.0 if settings.conversion else "auto"}


def head_of(settings: LanguageSettings) -> dict[str, Any] | None:
    """The map of the head with its temperature; None for softmax."""
    head = HEADS[settings.head]
    if head is None:
        return None
    usual = 1.0 if settings.conversion else "auto"
    return {**({"name": head} if isinstance(head, str) else head), "temperature": settings.temperature or usual}


def start_of(settings: LanguageSettings, vocabulary: int) -> dict[str, float] | None:
    """The settings that a head starts at: another alpha, with its own temperature; None for those it ends at."""
    alpha = settings.start_alpha
    return {"alpha": alpha, "temperature": balanced_temperature(alpha, vocabulary)} if alpha else None


def lora(rank: int) -> peft.LoraConfig:
    """An adapter of every linear layer of every block."""
    layers = ["c_attn", "c_proj", "c_fc"]
    return peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=layers, fan_in_fan_out=True)


class Rows(NamedTuple):
    """The name of a text, its tokenizer, and its tokens in rows for training and for testing."""

    what: str
    tokenizer: PreTrainedTokenizerFast
    train: list[list[int]]
    test: list[list[int]]


@functools.lru_cache(maxsize=1)
def rows_of(data: str, vocabulary: int, context: int, most: int) -> Rows:
    """Read a text and cut it into rows, once for all runs that share it.

    Args:
        data: see ``read_text``.
        vocabulary: largest number of tokens.
        context: tokens of a row.
        most: largest number of rows for testing.

    Raises:
        ValueError: the text is too short for one row of either kind; see also ``read_text``.
    """
    text = read_text(data)
    tokenizer = learn_tokenizer(text.train, vocabulary)
    return Rows(
        text.what, tokenizer, blocks(tokenizer, text.train, context), blocks(tokenizer, text.test, context, most)
    )


class Corpus:
    """The rows of a text, and training on them."""

    def __init__(self, settings: LanguageSettings) -> None:
        self.settings = settings
        most = settings.test_rows + settings.dev_rows
        self.what, self.tokenizer, self.train_rows, rows = rows_of(
            settings.data, settings.vocabulary, settings.context, most
        )
        held_out = torch.tensor(rows)
        self.test_rows, self.dev_rows = held_out[: settings.test_rows], held_out[settings.test_rows :]
        self.log: list[dict[str, Any]] = []
        # How often each token is in the training rows.
        self.counts = torch.tensor(self.train_rows).flatten().bincount(minlength=len(self.tokenizer))

    def train(self, model: Any, folder: Path, steps: int, lr: float, phase: int) -> None:
        """Train ``model`` in place for one phase, with a whole schedule of the learning rate."""
        settings, start = self.settings, start_of(self.settings, len(self.tokenizer))
        likelihood = {"weight": settings.likelihood, "uniform": settings.uniform}
        trainer = functools.partial(LikelihoodTrainer, **likelihood) if settings.likelihood else SparseSeq2SeqTrainer
        self.log = train(
            model,
            self.tokenizer,
            Dataset.from_dict({"input_ids": self.train_rows}),
            folder,
            collator=collate,
            steps=steps,
            lr=lr,
            embedding_lr=settings.embedding_lr,
            warmup=settings.warmup,
            adam={name: getattr(settings, name) for name in ("adam_beta2", "adam_epsilon", "weight_decay")},
            batch_size=settings.batch_size,
            seed=settings.seed + phase,
            report_to=settings.report_to,
            callbacks=[Curve(self.dev_rows, settings.uniform), *annealing(start, settings.over)],
            sparse_trainer=trainer,
        )

    def model(self, folder: Path) -> Any:
        """The trained model of a run."""
        settings = self.settings
        model: Any
        if not settings.conversion:
            model = made_sparse(build(settings, self.tokenizer), settings)
            if settings.offsets:
                head = hf_sparse.sparse_config(model).head if hf_sparse.is_sparse(model) else None
                alpha, temperature = (head.alpha, head.temperature) if head else (1.0, 1.0)
                model.lm_head.bias.data = frequency_offsets(self.counts, alpha, temperature)
            self.train(model, folder / "training", settings.steps, settings.lr, 0)
            return model
        model = made_sparse(GPT2LMHeadModel.from_pretrained(sibling(folder, DENSE_RUN, settings) / "model"), settings)
        if settings.conversion == "lora":
            model = peft.get_peft_model(model, lora(settings.lora_rank))
        if settings.conversion != "none":
            lr = settings.lora_lr if settings.conversion == "lora" else settings.lr / 2
            self.train(model, folder / "training", settings.conversion_steps, lr, 1)
        return model
