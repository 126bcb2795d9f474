"""Settings of a run: plain values in a frozen dataclass, each with the value that the paper gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

S = TypeVar("S", bound="Settings")


def setting(default: Any, paper: str = "", where: str = "") -> Any:
    """A field of ``Settings``.

    Args:
        default: the value of this recipe.
        paper: the value of the paper, shown by ``--list``; empty where the paper has no such setting.
        where: its section or table.
    """
    return dataclasses.field(default=default, metadata={"paper": paper, "where": where})


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings that all recipes have; each adds its own fields, all of them JSON values."""

    seed: int = setting(0)


def check_positive(settings: Settings, *names: str) -> None:
    """Raise ``ValueError`` unless all these settings are above 0."""
    for name in names:
        if not getattr(settings, name) > 0:
            raise ValueError(f"{name} must be above 0, was {getattr(settings, name)}")


def check_one_of(settings: Settings, **allowed: Iterable[str]) -> None:
    """Raise ``ValueError`` unless each of these settings is one of its allowed words; of these ``""`` may be one."""
    for name, words in allowed.items():
        known = list(words)
        if getattr(settings, name) not in known:
            listed = ", ".join(filter(None, known)) + (", or empty" if "" in known else "")
            raise ValueError(f"{name} must be one of {listed}, was {getattr(settings, name)!r}")


def changed(settings: S, changes: Mapping[str, Any]) -> S:
    """Copy of ``settings`` with other values.

    Args:
        settings: of any recipe.
        changes: values by name; an int is accepted for a float, a list for a tuple.

    Raises:
        ValueError: no setting has that name, or the value has another type.
    """
    known = names_of(settings)
    if unknown := sorted(set(changes) - set(known)):
        raise ValueError(f"no setting named {', '.join(unknown)}; there are: {', '.join(known)}")
    kinds = get_type_hints(type(settings))
    for name, value in changes.items():
        kind = kinds[name]
        if get_origin(kind) is tuple:
            kind, *_ = get_args(kind)
            if not isinstance(value, tuple | list) or not all(_is(kind, entry) for entry in value):
                raise ValueError(f"{name} must be a list of {kind.__name__}, as in {name}=[...], was {value!r}")
        elif kind in (bool, int, float, str) and not _is(kind, value):
            raise ValueError(f"{name} must be {kind.__name__}, was {value!r}")
    return dataclasses.replace(settings, **changes)


def _is(kind: type, value: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def names_of(settings: Settings) -> list[str]:
    """The names of all settings."""
    return [field.name for field in dataclasses.fields(settings)]


def read_of(settings: Settings, read: Iterable[str]) -> list[str]:
    """The names of those settings that a run reads, in order; it always reads ``seed``, because the record has it."""
    return [name for name in names_of(settings) if name in {"seed", *read}]


def check_read(given: Iterable[str], reads: Mapping[str, Sequence[str]]) -> None:
    """Refuse settings that change nothing.

    Args:
        given: names of the settings that were asked for.
        reads: names of those that each run reads.

    Raises:
        ValueError: one of those given is read by no run.
    """
    if idle := [name for name in given if not any(name in read for read in reads.values())]:
        told = "; ".join(f"{run} reads {', '.join(read)}" for run, read in reads.items())
        raise ValueError(f"no run asked for reads {', '.join(idle)}: {told}")


def listing(runs: Mapping[str, S], reads: Callable[[S], Iterable[str]]) -> str:
    """Runs and the settings that they read, one per line, each with the paper's value and its place in the paper."""
    lines = []
    for name, settings in runs.items():
        lines.append(name)
        read = read_of(settings, reads(settings))
        for field in dataclasses.fields(settings):
            if field.name not in read:
                continue
            paper, where = field.metadata.get("paper", ""), field.metadata.get("where", "")
            told = f"   paper: {paper}" + (f" ({where})" if where else "") if paper else ""
            lines.append(f"    {field.name} = {getattr(settings, field.name)!r}{told}")
    return "\n".join(lines)
