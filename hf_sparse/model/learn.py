"""Settings of attention's maps that become learned, a number for each head, from where they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from torch import nn

from ..attention.site import add_learned, attention_sites
from ..config import AttentionRule, MapConfig
from ..config.settings import ON_SCORES, Learned
from ..functional import MAPS
from .attach import change_settings
from .dense_blocks import dense_attention
from .example import first_run
from .find import check_whole, sparse_config, transformers_model
from .sparsify import check_heads_are_here, check_learned, with_learning_heads

Model = TypeVar("Model", bound=nn.Module)

# The ends of alpha's range cannot be learned from: the slope of its parameter is 0 there.
_LEAST, _MOST = 1.01, 1.99


def learn_settings(
    model: Model, settings: Iterable[str] = ("alpha", "temperature"), *, example: Mapping[str, object] | None = None
) -> Model:
    """Let a sparse model learn settings of its attention, a number for each head, from those that it has.

    They become parameters of the attention modules, as if ``sparsify`` had been given ``"learned"`` with a start; what
    ``calibrate`` found is where they start. entmax15 and sparsemax become entmax where alpha is learned. The weights
    stay what they were, but for an alpha of 1 or 2, which starts 0.01 inside its range. Softmax stays softmax.

    Args:
        model: a sparse model, before PEFT wraps it (give ``get_peft_model`` then
            ``modules_to_save=["sparse_alpha", "sparse_temperature"]``). Changed in place.
        settings: names of settings; some map of the model may lack one.
        example: keyword arguments for one forward call, for models whose input cannot be made up.

    Returns:
        The same object.

    Raises:
        ValueError: a dense model, or a part of a sparse one; a name of no setting that is learned; settings of which
            its attention has none, or that cannot be learned; an alpha above 2; heads that cannot be counted; see
            ``sparsify``.
        TypeError: not a Transformers model, or settings that are no list of names.

    Source: alpha for each head, Correia et al. 2019, Section 3.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from hf_sparse import sparsify
    >>> sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    >>> model = sparsify(LlamaForCausalLM(LlamaConfig(vocab_size=20, **sizes)), attn="entmax15")
    >>> model = learn_settings(model, ["temperature"])
    >>> model.model.layers[0].self_attn.sparse_temperature.value.exp().tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    inner, config, names = transformers_model(model), sparse_config(model), _checked(settings)
    check_whole(model)
    new = config.replace_maps(lambda rule: _learned(rule, names))
    if new == config:
        given = ", ".join(map(repr, names)) or "none"
        raise ValueError(
            f"no map in attention of this {type(inner).__name__} has a setting to learn among those given: {given}; "
            f"its maps are: {', '.join(sorted({each.name for each in config.attention_maps})) or 'softmax'}"
        )
    check_heads_are_here(inner, new)
    check_learned(model, inner, new)
    with dense_attention(inner):
        run = first_run(inner, example)
    change_settings(inner, with_learning_heads(inner, new, run))
    for module, site in attention_sites(inner):
        add_learned(module, site)
    return model


def _checked(settings: Iterable[str]) -> tuple[str, ...]:
    """The names of settings, each of which some map has."""
    if isinstance(settings, str) or not isinstance(settings, Iterable):
        raise TypeError(f'settings must be a list of names, as ["alpha"], was {settings!r}')
    names, every = tuple(settings), (ON_SCORES, *(known.settings for known in MAPS.values()))
    learned = {name for each in every for name, setting in each.items() if setting.to_real is not None}
    for name in names:
        if name not in learned:
            raise ValueError(
                f"no map can learn a setting {name!r}; settings that are learned are "
                f"{', '.join(map(repr, sorted(learned)))}"
            )
    return names


def _learned(rule: AttentionRule, names: tuple[str, ...]) -> MapConfig | None:
    """The map of a rule with settings that are learned; those that are learned already stay."""
    map_config = rule.map
    if map_config is None or map_config.name == "softmax":
        return map_config
    found = map_config.spelled_out if "alpha" in names and map_config.is_entmax else map_config
    for name in names:
        if name in found.map.settings or name in ON_SCORES:
            found = _with_learned(found, name, rule.role)
    return found


def _with_learned(map_config: MapConfig, name: str, role: str) -> MapConfig:
    """The map with one of its settings learned from where it is."""
    value = map_config.value(name)
    if isinstance(value, Learned):
        return map_config
    if name == "alpha" and max(value.numbers) > 2:
        raise ValueError(
            f"alpha is learned between 1 and 2, and a map of this model's {role} has {max(value.numbers):g}; learn "
            "other settings alone, or make the model sparse with a smaller alpha"
        )
    start = [min(max(each, _LEAST), _MOST) if name == "alpha" else each for each in value.numbers]
    parsed = MapConfig.parse({"name": map_config.name, name: {"learned": start}}, role)
    return map_config.with_settings(**{name: parsed.value(name)})
