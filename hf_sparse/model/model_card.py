"""The model card's section on sparsity: maps, metrics, how to load. Nothing else in the card is touched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from ..config import AttentionRule, MapConfig, SparseConfig
from ..config.settings import CoverageVectors

SECTION = re.compile(r"<!-- begin hf_sparse -->.*?<!-- end hf_sparse -->", re.DOTALL)
HERE = "path of this folder, or id of this repository"
NEW_CARD = "---\nlibrary_name: transformers\n---\n"
# What is measured, by name: the words of the card, and the format of the number.
FIGURES = {
    "attention_support": ("keys with weight, mean a query", ".4g"),
    "attention_zero_rate": ("keys of exactly zero weight", ".1%"),
    "attention_edges": ("edges of attention: visible keys with weight", ".1%"),
    "head_support": ("classes of nonzero probability, mean a token", ".4g"),
    "head_zero_rate": ("classes of exactly zero probability", ".1%"),
    "head_missed_rate": ("next tokens of exactly zero probability", ".1%"),
    "head_coverage": (
        "observed classes in the support, mean over positions exchangeable with those of the calibration",
        ".1%",
    ),
}


OF_MODELS = "Once `hf_sparse` is imported, `AutoModel` classes load the same model; without it they refuse to."
OF_ADAPTERS = "This is an adapter. `hf_sparse` makes its base sparse too; PEFT refuses the adapter without it."


def sparsity_section(
    config: SparseConfig,
    metrics: Mapping[str, float] | None = None,
    load_from: str = HERE,
    *,
    is_adapter: bool = False,
) -> str:
    """Markdown on a sparse model, between comments by which it is found again.

    Args:
        config: the model's settings.
        metrics: what was measured, by name: those that ``SparseTrainer`` logs, with any prefix, are written out;
            others keep their names. Rates, edges and coverage are shares in [0, 1]. None or empty leaves the metrics
            out.
        load_from: what the example loads.
        is_adapter: whether that is an adapter of PEFT, without its base.

    >>> print(sparsity_section(SparseConfig.parse(attn="entmax15"), {"eval_attention_zero_rate": 0.912}))
    <!-- begin hf_sparse -->
    ## Sparse maps
    <BLANKLINE>
    | place | instead of softmax |
    |---|---|
    | attention | entmax15 |
    <BLANKLINE>
    - keys of exactly zero weight: 91.2%
    ...
    """
    lines = ["<!-- begin hf_sparse -->", "## Sparse maps", "", "| place | instead of softmax |", "|---|---|"]
    lines += [f"| {place} | {text} |" for place, text in _places(config)]
    lines += ["", *(_metric(name, value) for name, value in metrics.items()), ""] if metrics else [""]
    lines += ["```python", "import hf_sparse", "", f'model = hf_sparse.from_pretrained("{load_from}")', "```", ""]
    lines += [OF_ADAPTERS if is_adapter else OF_MODELS]
    return "\n".join([*lines, "<!-- end hf_sparse -->"])


def update_card(
    folder: str | Path,
    config: SparseConfig,
    metrics: Any = None,
    load_from: str = HERE,
    *,
    is_adapter: bool | None = None,
) -> None:
    """Write the section into ``README.md`` of a saved model: in place of the section there, else at the end.

    Args:
        folder: where the model was saved. Without a card there a new one is made.
        config: the model's settings; ``hf_sparse`` and the names of its maps are added to the card's tags.
        metrics: see ``sparsity_section``.
        load_from: see ``sparsity_section``.
        is_adapter: see ``sparsity_section``; None looks for an adapter in the folder.

    Raises:
        ValueError: the metadata of the card that is there cannot be read.
        TypeError: metrics that are not names and numbers.
    """
    _check_metrics(metrics)
    path = Path(folder, "README.md")
    card = ModelCard(path.read_text(encoding="utf-8") if path.exists() else NEW_CARD)
    metadata: Any = card.data
    if is_adapter is None:
        is_adapter = Path(folder, ADAPTER_CONFIG_NAME).exists()
    section = sparsity_section(config, metrics, load_from, is_adapter=is_adapter)
    text, found = SECTION.subn(lambda _: section, card.text, count=1)
    tags = list(metadata.tags or [])
    metadata.tags = [*tags, *(tag for tag in ("hf_sparse", *config.map_names) if tag not in tags)]
    card.text = text if found else f"{text.rstrip()}\n\n{section}\n"
    card.save(path)


def _check_metrics(metrics: object) -> None:
    entries = metrics.items() if isinstance(metrics, Mapping) else [metrics]
    if metrics is not None and not all(
        isinstance(entry, tuple) and isinstance(entry[0], str) and isinstance(entry[1], Real) for entry in entries
    ):
        raise TypeError(f"metrics must map names to numbers, was {metrics!r}")


def _places(config: SparseConfig) -> list[tuple[str, str]]:
    places = [(_place(rule), _map_text(rule.map, rule.coverage)) for rule in config.attn if rule.map is not None]
    return places if config.head is None else [*places, ("head", _map_text(config.head))]


def _place(rule: AttentionRule) -> str:
    kind = "attention" if rule.kind is None else f"{rule.kind} attention"
    return kind if rule.layer is None else f"{kind}, layer {rule.layer}"


def _map_text(map_config: MapConfig, coverage: CoverageVectors | None = None) -> str:
    settings = [f"{name} {value.shown()}" for name, value in map_config.settings]
    settings += [coverage.shown()] if coverage else []
    return f"{map_config.name} ({', '.join(settings)})" if settings else map_config.name


def _metric(name: str, value: float) -> str:
    label, form = next((FIGURES[known] for known in FIGURES if name.endswith(known)), (name, ".4g"))
    return f"- {label}: {value:{form}}"
