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


def cache_in(arguments: Mapping[str, Any]) -> Any:
    """The cache among the arguments of a call, by whichever name; None for none."""
    cache = arguments.get(CACHE)
    return arguments.get(OLD_NAME) if cache is None else cache
