"""The name of the cache in calls and outputs of models, which Transformers 5.24 changed.

Models of Transformers take the old name, too, and warn. Code of others may call its attention by the old one only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from transformers.modeling_outputs import BaseModelOutputWithPast

OLD_NAME = "past_key_values"
CACHE = "cache" if "cache" in {field.name for field in fields(BaseModelOutputWithPast)} else OLD_NAME


def check_one_cache(arguments: Mapping[str, Any]) -> None:
    """Refuse a call with two caches, one under each name, of which Transformers would read one and warn.

    Raises:
        ValueError: such a call.
    """
    cache, by_old_name = arguments.get(CACHE), arguments.get(OLD_NAME)
    if cache is not None and by_old_name is not None and cache is not by_old_name:
        raise ValueError(
            f"a call has both {CACHE} and {OLD_NAME}, of which only {CACHE} would be read; give one of them. PEFT "
            "before 0.22 puts the prefix of PrefixTuningConfig into past_key_values, beside the cache of Transformers "
            "5.24: take a newer peft, or transformers 5.23"
        )


def cache_in(arguments: Mapping[str, Any]) -> Any:
    """The cache among the arguments of a call, by whichever name; None for none.

    Raises:
        ValueError: two of them; see ``check_one_cache``.
    """
    check_one_cache(arguments)
    cache = arguments.get(CACHE)
    return arguments.get(OLD_NAME) if cache is None else cache
