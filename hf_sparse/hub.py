"""Coming back: a checkpoint saved sparse loads sparse, or says why not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import transformers
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from .attention.find import find_sites, through_interface
from .attention.inline import inline_refusal
from .attention.interface import NAME
from .config import SparseConfig
from .fertility.source import SOURCE_FILES, load_source, saved_source
from .files import check_path, complete_files
from .model.attach import attach
from .model.find import is_sparse, sparse_config, sparse_state
from .model.model_card import update_card
from .model.saved_config import (
    ADAPTER_SETTINGS,
    BLOCK,
    PARTS,
    AdapterSettings,
    block_of,
    found_file,
    marked_part,
    parts_of,
    where_on_hub,
)
from .model.sparse_model import SparseModel
from .model.sparsify import kind_problems, layer_problems
from .model.state import SparseState, state_of

__all__ = ["from_pretrained", "save_pretrained"]


def from_pretrained(path: str | Path, *, auto_class: Any = None, **kwargs: Any) -> Any:
    """Load a sparse model, of the class it was saved from, with its maps, alpha and tau.

    Args:
        path: a local folder or a Hub id, of a sparse model or of a PEFT adapter saved by ``save_pretrained`` here.
        auto_class: load as this class (``AutoModelForCausalLM``, ``BartModel``, ...); None takes the class named in
            the checkpoint.
        **kwargs: as for an Auto class's ``from_pretrained``; for an adapter also PEFT's ``is_trainable`` and
            ``adapter_name``.

    Returns:
        The sparse model; for an adapter the ``PeftModel`` around its sparse base. With ``output_loading_info=True`` a
        pair of that and what Transformers says about loading it, or its base.

    Raises:
        ValueError: the checkpoint is not sparse, its settings cannot be read, or its class is not known;
            ``output_attentions=True``, which is an argument of a call of the model.
        TypeError: ``auto_class`` is not a class.
    """
    check_path(path)
    if kwargs.get("output_attentions"):
        raise ValueError("output_attentions=True goes with a call of the model: model(..., output_attentions=True)")
    if found_file(path, ADAPTER_CONFIG_NAME, kwargs) is not None:
        return _adapter_from_pretrained(path, auto_class, **kwargs)
    config = _configuration(path, auto_class, kwargs)
    block = block_of(config)
    if block is None:
        raise ValueError(f"{path} is not a sparse checkpoint; load it with Transformers and call sparsify(model, ...)")
    if SparseConfig.from_dict(block).attn:
        kwargs.setdefault("attn_implementation", NAME)
    model, *info = _loaded(loading_class(auto_class, config), path, kwargs)
    if not isinstance(model, SparseModel):
        raise RuntimeError(f"{path} was saved sparse but loaded dense as {type(model).__name__}; please report this")
    return (model, *info) if info else model


def save_pretrained(
    model: PreTrainedModel, path: str | Path, *, metrics: Mapping[str, float] | None = None, **kwargs: Any
) -> None:
    """Save a sparse model, or the PEFT adapter around one with its base's maps, all of it or nothing.

    Args:
        model: a sparse model or a ``PeftModel`` around one.
        path: the folder to write. What is there stays untouched until the new files are complete. They then take the
            places of those of their names, and of the weights saved before; all else stays. In the model card
            (``README.md``) only the section on sparsity is new.
        metrics: measured sparsity for that section, as ``SparseTrainer.evaluate`` returns it; None takes what the
            last such evaluation measured, if there was one.
        **kwargs: as for the model's own ``save_pretrained``.

    Raises:
        ValueError: the model is not sparse, ``path`` is a file, or it holds an adapter and the model is whole: who
            loads that folder would put the adapter into the model.
    """
    config = sparse_config(model)
    check_path(path)
    whole_model = isinstance(model, PreTrainedModel) and not getattr(model, "_hf_peft_config_loaded", False)
    if whole_model and Path(path, ADAPTER_CONFIG_NAME).exists():
        raise ValueError(
            f"{path} holds an adapter, which would be put into this model when it is loaded from there: save the "
            f"model in another folder, or remove {ADAPTER_CONFIG_NAME} first"
        )
    if metrics is None:
        metrics = sparse_state(model).metrics
    if not kwargs.get("is_main_process", True):
        model.save_pretrained(path, **kwargs)  # writes nothing, but takes part in gathering the weights
        return
    target = Path(path)
    if kwargs.get("push_to_hub"):
        kwargs.setdefault("repo_id", target.name)
    with complete_files(target) as folder:
        card = target / "README.md"
        if card.exists():
            shutil.copy(card, folder)
        with _metrics_in_cards(sparse_state(model), metrics):
            model.save_pretrained(folder, **kwargs)
        update_card(folder, config, metrics)


@contextmanager
def _metrics_in_cards(state: SparseState, metrics: Mapping[str, float]) -> Iterator[None]:
    """Have cards that the block writes, and perhaps pushes, say these metrics in the place of those of the state."""
    before, state.metrics = state.metrics, cast(dict[str, float], metrics)
    try:
        yield
    finally:
        state.metrics = before


def _adapter_from_pretrained(path: str | Path, auto_class: Any, **kwargs: Any) -> Any:
    saved = found_file(path, ADAPTER_SETTINGS, kwargs)
    if saved is None:
        raise ValueError(
            f"{path} holds an adapter without {ADAPTER_SETTINGS}, so its base's maps are not known: save it with "
            "hf_sparse.save_pretrained(model, path), or make the base sparse yourself and load it with PEFT"
        )
    from peft import PeftConfig, PeftModel

    settings, where = AdapterSettings.read(saved), where_on_hub(kwargs)
    adapter = PeftConfig.from_pretrained(path, **where)
    base_path = adapter.base_model_name_or_path
    if not base_path:
        raise ValueError(
            f"the adapter {path} does not say where its base is, which had no name when it was put in: save the base "
            f'with save_pretrained, and write its path as "base_model_name_or_path" into {ADAPTER_CONFIG_NAME}'
        )
    options = {name: kwargs.pop(name) for name in ("is_trainable", "adapter_name") if name in kwargs}
    of_base = {key: value for key, value in kwargs.items() if key not in ("revision", "subfolder")}
    if adapter.revision:
        of_base["revision"] = adapter.revision
    base, *info = _base_of_adapter(base_path, auto_class, settings, of_base)
    config = settings.config
    if not is_sparse(base):
        for problem in (*_saved_problems(base, config), *_missing_kinds(base, config)):
            raise ValueError(f"the adapter {path} is not for {base_path}: {problem}")
        attach(base, config, load_source(config, *(found_file(path, name, kwargs) for name in SOURCE_FILES)))
    elif sparse_config(base).maps != config.maps:
        raise ValueError(
            f"the adapter {path} was trained on a base with {config.to_dict()}, but {base_path} has "
            f"{sparse_config(base).to_dict()}"
        )
    model = PeftModel.from_pretrained(base, path, **where, **options)
    return (model, *info) if info else model


def _base_of_adapter(path: str, auto_class: Any, settings: AdapterSettings, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The model that an adapter was trained in, of its class and with as many labels, dense or sparse.

    Returns:
        As ``_loaded``.

    Raises:
        ValueError: a dense model with an adapter from a sparse one in its own folder.
    """
    config = _configuration(path, auto_class, kwargs)
    if block_of(config) is None and (Path(path) / ADAPTER_SETTINGS).exists():
        raise ValueError(
            f"{path} holds a dense model beside an adapter that was trained under sparse maps, and Transformers puts "
            "the one into the other: move the adapter into a folder of its own"
        )
    if settings.config.attn and block_of(config) is not None:
        kwargs.setdefault("attn_implementation", NAME)
    if auto_class is None and settings.architecture is not None:
        config.architectures = [settings.architecture]
    labels = settings.id2label
    given = auto_class is not None or kwargs.keys() & {"num_labels", "id2label"}
    if labels and labels != config.id2label and not given:
        kwargs |= {"id2label": labels, "label2id": {label: number for number, label in labels.items()}}
    return _loaded(loading_class(auto_class, config), path, kwargs)


def _configuration(path: str | Path, auto_class: Any, kwargs: Mapping[str, Any]) -> PreTrainedConfig:
    """The configuration of a checkpoint that is loaded with these arguments.

    Auto classes do not know every type of model: some parts of Transformers' (Bark's), and classes of one's own.
    """
    where = where_on_hub(kwargs)
    of_code = {name: kwargs[name] for name in ("trust_remote_code", "code_revision") if name in kwargs}
    saved, _ = PreTrainedConfig.get_config_dict(path, **where)
    kind, loading = saved.get("model_type"), AutoConfig
    if kind and kind not in CONFIG_MAPPING and "auto_map" not in saved:
        of_code, loading = (
            {},
            getattr(loading_class(auto_class, PreTrainedConfig.from_dict(saved)), "config_class", None),
        )
    if loading is None:
        raise ValueError(
            f"Auto classes know no models of type {kind!r}: pass the model's own class as auto_class to "
            "hf_sparse.from_pretrained"
        )
    config: PreTrainedConfig = loading.from_pretrained(path, **where, **of_code)
    return config


def _loaded(loading: Any, path: str | Path, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The model that a class loads, and with ``output_loading_info=True`` what it says about that."""
    if issubclass(loading, PreTrainedModel):
        kwargs.pop("code_revision", None)  # of Auto classes, which look for the code; here it is
    loaded = loading.from_pretrained(path, **kwargs)
    return loaded if isinstance(loaded, tuple) else (loaded,)


def loading_class(given: Any, config: PreTrainedConfig) -> Any:
    """The class to load with: the one given, else the one that the checkpoint names."""
    if given is not None:
        if not isinstance(given, type) or not hasattr(given, "from_pretrained"):
            raise TypeError(
                f"auto_class must be a class with from_pretrained, as transformers.AutoModelForCausalLM; was {given!r}"
            )
        return given
    names = config.architectures
    named = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    found = getattr(transformers, named, None)
    if not isinstance(found, type) or not issubclass(found, PreTrainedModel):
        raise ValueError(
            f"config.json names no class of Transformers (architectures was {names}); name one there, or pass "
            "auto_class to hf_sparse.from_pretrained"
        )
    return found


def _saved_problems(model: PreTrainedModel, config: SparseConfig) -> Iterator[str]:
    """Reasons why layers would be dense that the saved settings mean to be sparse."""
    reason = inline_refusal(model, find_sites(model, config)) if config.attn else None
    if reason is not None:  # by a switch of its configuration that was set since
        yield reason
    yield from layer_problems(model, config)


def _missing_kinds(model: PreTrainedModel, config: SparseConfig) -> Iterator[str]:
    """Reasons why all attention of a model would be dense that is saved sparse: it is of kinds without a map.

    Other classes than the saved one may lack those kinds, as the stacks of an encoder-decoder. The configuration of a
    part, which has settings because the part has sparse attention, often names no class.
    """
    name = type(model).__name__
    is_saved_class = name in (model.config.architectures or [name]) and not type(model.config).is_encoder_decoder
    if is_saved_class and all(site.map_config is None for site in find_sites(model, config)):
        yield from kind_problems(model, config)


def check_kinds(model: PreTrainedModel) -> None:
    """Refuse a model that was loaded from a sparse checkpoint and has no kind of attention that is sparse there.

    A part of several uses has its kind by its place in the whole (BLIP's ``text_decoder``), and perhaps another alone.

    Raises:
        ValueError: it is one.
    """
    state = state_of(model)
    for problem in () if state is None else _missing_kinds(model, state.config):
        raise ValueError(
            f"this checkpoint is not for this model: {problem}; where it is a part of another, load the whole and "
            "take the part from it"
        )


def check_loaded(model: PreTrainedModel, path: Any, where: Mapping[str, Any]) -> None:
    """Refuse a dense model with the weights of a sparse checkpoint, which a configuration from elsewhere makes.

    Args:
        model: what was loaded.
        path: the checkpoint's folder or Hub id; None where the weights were given.
        where: where on the Hub the checkpoint is (revision, token, ...), perhaps among other arguments.

    Raises:
        ValueError: it is one.
    """
    if path is None or is_sparse(model):
        return
    saved = found_file(path, "config.json", where)
    block = None if saved is None else json.loads(Path(saved).read_text(encoding="utf-8")).get(BLOCK)
    if block is not None:
        raise ValueError(
            f"{path} is a sparse checkpoint ({json.dumps(block)}), and the configuration that was given has no sparse "
            "maps, so that the model would be dense: change what AutoConfig.from_pretrained returns for that "
            "checkpoint, or pass the changes instead of config; for a dense model call unsparsify after loading"
        )


def attach_as_saved(model: PreTrainedModel) -> None:
    """Make a model that was built from a sparse configuration sparse, before its weights are loaded."""
    if isinstance(model, SparseModel):  # built by the class of a sparse model; its configuration decides
        if "_dense_class" not in vars(type(model)):
            dense = type(model)._dense_class.__name__
            raise ValueError(
                f"{type(model).__name__} is derived from the class of a sparse {dense}, which would take its "
                f"place: derive it from the dense {dense}, and call sparsify on what it builds"
            )
        model.__class__ = model._dense_class
    part = marked_part(model.config)
    if part is not None:
        raise ValueError(
            f"a part of this {type(model).__name__} ({part}) is sparse by itself, and the whole would train, decode "
            "and be saved as a dense model: call unsparsify on the part, then sparsify(model, ...) on the whole"
        )
    whole, parts = block_of(model.config), parts_of(model.config)
    if whole is None:
        return
    block = parts.get(type(model).__name__, whole)
    config = SparseConfig.from_dict(block)
    for problem in _saved_problems(model, config):
        raise ValueError(f"this checkpoint is not for this model: {problem}")
    asked = model.config._attn_implementation
    if config.attn and asked != NAME and through_interface(cast(Any, type(model))):
        raise ValueError(
            f"this checkpoint has sparse attention ({json.dumps(block['attn'])}) and would be dense with "
            f"attn_implementation={asked!r}: load it without that argument, or with {NAME!r} where a script passes a "
            "default of its own, or call unsparsify(model) afterwards; for attention weights call "
            "model(..., output_attentions=True)"
        )
    if not config.attn and asked == NAME:
        model.set_attn_implementation(model.get_correct_attn_implementation(None))
    own = config
    if config.head is not None and model.get_output_embeddings() is None:
        own = SparseConfig(config.attn)  # AutoModel of a language model: no head to be sparse
    attach(model, own, saved_source(model.config, own), saved=SparseConfig.from_dict(whole))
    if parts:  # which the whole around this model reads too
        setattr(model.config, PARTS, parts)
