"""The configuration of a sparse model: which map replaces softmax where. Frozen, checked, plain data when saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from .._version import __version__
from ..functional.arguments import check_flag
from .attention_rule import AttentionRule
from .map_config import MapConfig
from .settings import BY_LENGTH, CoverageVectors

KINDS = ("encoder", "decoder", "cross")
VERSION = 1
# Factors on the loss of a head with a temperature T: T itself, or 1 as in checkpoints that name none.
LOSS_SCALES = ("temperature", "one")


@dataclass(frozen=True)
class SparseConfig:
    """The maps that a model has in the place of softmax.

    Attributes:
        attn: the rules for attention: one for all of it, or for some kinds one for all layers or one per layer. Empty
            where attention is dense.
        head: the map from logits to next-token probabilities, or None to leave softmax.
        fused_loss: in training, compute the head's loss without ever holding its logits.
        loss_scale: the factor on the loss ``L(z / T, y)`` of a head with temperature T. ``"temperature"``: T, so that
            the gradient by the logits is ``p - y`` at every T, as softmax's is. ``"one"``: 1, with the gradient
            ``(p - y) / T``; checkpoints saved without this field were trained so, and keep it. At T = 1 both are the
            same, and this is ``"temperature"``.

    >>> SparseConfig.parse(attn="entmax15", head={"name": "alpha_relu", "tau": 0.3}).to_dict()
    {'version': 1, 'attn': {'name': 'entmax15'}, 'head': {'name': 'alpha_relu', 'alpha': 1.5, 'tau': 0.3},
     'fused_loss': False}
    """

    attn: tuple[AttentionRule, ...] = ()
    head: MapConfig | None = None
    fused_loss: bool = False
    loss_scale: str = "temperature"

    def __post_init__(self) -> None:
        if self.head is None or self.head.temperature == 1:  # settings that train alike are equal
            object.__setattr__(self, "loss_scale", "temperature")

    @classmethod
    def parse(
        cls, attn: object = None, head: object = None, fused_loss: bool = False, loss_scale: str = "temperature"
    ) -> SparseConfig:
        """Check what the user asked of ``sparsify``.

        Args:
            attn: None, a map's name, a mapping with name and settings, or a mapping from kinds to any of these.
            head: None, a map's name, or a mapping with name and settings.
            fused_loss: whether the head's loss is computed without its logits.
            loss_scale: ``"temperature"`` or ``"one"``.

        Raises:
            ValueError: nothing asked for; an unknown map, kind, setting or scale; a setting out of range; a map that
                cannot weigh attention.
            TypeError: a value of the wrong type.
        """
        check_flag("fused_loss", fused_loss)
        if loss_scale not in LOSS_SCALES:
            raise ValueError(f"loss_scale must be {' or '.join(map(repr, LOSS_SCALES))}, was {loss_scale!r}")
        config = cls(_parse_attention(attn), None if head is None else _parse_head(head), fused_loss, loss_scale)
        if not config.attn and config.head is None:
            raise ValueError("nothing to make sparse: give attn, head or both (a map's name, or a mapping)")
        return config

    @property
    def maps(self) -> SparseConfig:
        """These settings without ``fused_loss``, which says how a loss is computed and not what it is."""
        return replace(self, fused_loss=False)

    def rule(self, kind: str, layer: int) -> AttentionRule:
        """The rule for one kind of attention in one layer; one without a map where softmax stays."""
        for rule in self.attn:
            if rule.kind in (None, kind) and rule.layer in (None, layer):
                return rule
        return AttentionRule(kind, layer, None)

    def attention(self, kind: str, layer: int) -> MapConfig | None:
        """The map for one kind of attention in one layer, or None where softmax stays."""
        return self.rule(kind, layer).map

    @property
    def kinds(self) -> list[str]:
        """The kinds of attention that have rules of their own."""
        return [kind for kind in KINDS if any(rule.kind == kind for rule in self.attn)]

    def layers_listed(self, kind: str) -> int:
        """The number of layers that have a rule each; 0 where one rule is for all layers of the kind."""
        return sum(rule.kind == kind and rule.layer is not None for rule in self.attn)

    @property
    def attention_maps(self) -> list[MapConfig]:
        """The maps of all kinds and layers of attention."""
        return [rule.map for rule in self.attn if rule.map is not None]

    @property
    def is_learned(self) -> bool:
        """Whether some setting of attention is learned."""
        return any(rule.learned_names for rule in self.attn)

    @property
    def is_sequential(self) -> bool:
        """Whether some attention follows what its keys received before."""
        return any(rule.is_sequential for rule in self.attn)

    @property
    def map_names(self) -> list[str]:
        """The names of all maps, for tags."""
        return sorted({map_config.name for map_config in [*self.attention_maps, self.head] if map_config is not None})

    def replace_maps(self, new_map: Callable[[AttentionRule], MapConfig | None]) -> SparseConfig:
        """The same rules with other maps: ``new_map(rule)`` for every rule that has one."""
        return replace(
            self, attn=tuple(rule if rule.map is None else replace(rule, map=new_map(rule)) for rule in self.attn)
        )

    def with_heads(self, heads: Mapping[str, tuple[int, int]]) -> SparseConfig:
        """Give learned settings a start for each head, and coverage a vector for each.

        Args:
            heads: by kind of attention with something to learn, the number of heads and the length of their queries.
        """
        rules: list[AttentionRule] = []
        for rule in self.attn:
            kinds = [rule.kind] if rule.kind else list(heads)
            rules += [rule.for_heads(kind, *heads[kind]) if kind in heads else rule for kind in kinds]
        return replace(self, attn=tuple(rules))

    @property
    def loss_factor(self) -> float:
        """The factor on the head's loss that ``loss_scale`` names; 1 where the head is dense."""
        return 1.0 if self.head is None or self.loss_scale == "one" else self.head.temperature

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``config.json``; ``loss_scale`` where there is a factor."""
        head = None if self.head is None else self.head.to_dict()
        plain = {"version": VERSION, "attn": self._plain_attention(), "head": head, "fused_loss": self.fused_loss}
        return plain if self.loss_factor == 1 else plain | {"loss_scale": self.loss_scale}

    def _plain_attention(self) -> dict[str, Any] | None:
        by_kind: dict[str | None, Any] = {}
        for rule in self.attn:
            if rule.layer is None:
                by_kind[rule.kind] = rule.to_dict()
            else:
                by_kind.setdefault(rule.kind, []).append(rule.to_dict())
        return by_kind.get(None, by_kind or None)

    @classmethod
    def from_dict(cls, data: object) -> SparseConfig:
        """Read what ``to_dict`` wrote, trusting nothing.

        Raises:
            ValueError: not such a block, a version, fields, maps or settings this release does not know, or a setting
                out of range.
            TypeError: a value of the wrong type.
        """
        if not isinstance(data, Mapping) or "version" not in data:
            raise ValueError(f"not a saved hf_sparse configuration: {data!r}")
        if data["version"] != VERSION:
            raise ValueError(
                f"saved by hf_sparse format {data['version']!r}, this release reads format {VERSION}: "
                "install the hf_sparse release that saved it, or a newer one"
            )
        unknown = sorted(set(data) - {"version", *(field.name for field in fields(cls))})
        if unknown:
            named = ", ".join(map(repr, unknown))
            raise ValueError(
                f"unknown fields in the saved hf_sparse configuration: {named}; hf_sparse {__version__} does not know "
                "them: install the release that saved it, or a newer one"
            )
        saved = {"loss_scale": "one"} | {key: value for key, value in data.items() if key != "version"}
        try:
            config = cls.parse(**saved)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"the saved hf_sparse configuration does not fit hf_sparse {__version__} ({error}): install the "
                "release that saved it, or a newer one; of a map that is somebody's own, import the code that "
                "registers it first"
            ) from error
        if config.head is not None and config.head.open_settings:
            raise ValueError(f"the saved head leaves {config.head.open_settings[0]!r} open; it must be a number")
        if any(rule.coverage == CoverageVectors() for rule in config.attn):
            raise ValueError('the saved attention has coverage="vector" without the size of the vectors')
        return config


def _parse_attention(attn: object) -> tuple[AttentionRule, ...]:
    """The rules that a user's ``attn`` stands for: nothing, one map, or a map or list of maps for each kind."""
    if attn is None:
        return ()
    if isinstance(attn, list | tuple):
        raise TypeError('attn: a list of maps, one for each layer, goes with a kind: {"decoder": [...]}')
    if not isinstance(attn, Mapping) or "name" in attn:
        return (AttentionRule.parse(None, None, attn),)
    unknown = [kind for kind in attn if kind not in KINDS]
    if unknown or not attn:
        kinds = ", ".join(map(repr, KINDS))
        raise ValueError(f'attn: kinds of attention are {kinds}, was {list(attn)}; one map has a "name"')
    return tuple(rule for kind in KINDS if attn.get(kind) is not None for rule in _parse_kind(kind, attn[kind]))


def _parse_kind(kind: str, value: object) -> list[AttentionRule]:
    if not isinstance(value, list | tuple):
        return [AttentionRule.parse(kind, None, value)]
    if all(entry is None for entry in value):
        role = AttentionRule(kind, None, None).role
        raise ValueError(f"{role} lists no map; leave {role} out to keep softmax")
    return [
        AttentionRule(kind, layer, None) if entry is None else AttentionRule.parse(kind, layer, entry)
        for layer, entry in enumerate(value)
    ]


def _parse_head(value: object) -> MapConfig:
    if isinstance(value, Mapping) and value.get("coverage", "none") != "none":
        raise ValueError("head: coverage follows what attention gave its keys; it is for attention")
    if isinstance(value, Mapping):
        value = {key: entry for key, entry in value.items() if key != "coverage"}
    map_config = MapConfig.parse(value, "head")
    if map_config.centered and map_config.map.shift_invariant:
        raise ValueError(f"head: {map_config.name} ignores a constant in its scores; leave centered out")
    if map_config.scaled_by_length:
        given = ", ".join(name for name, _ in map_config.settings if name in BY_LENGTH)
        raise ValueError(f"head: {given} scale scores by the number of keys; they are for attention")
    map_config.map.loss_regularizer()
    return map_config
