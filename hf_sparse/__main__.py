"""The command line: ``python -m hf_sparse convert | doctor | compare | calibrate | run | demo``."""

from __future__ import annotations

import argparse
import inspect
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel
from transformers.utils import (
    CHAT_TEMPLATE_FILE,
    FEATURE_EXTRACTOR_NAME,
    IMAGE_PROCESSOR_NAME,
    PROCESSOR_NAME,
    VIDEO_PROCESSOR_NAME,
    cached_file,
)
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from .attention import attention_sites
from .conversion import calibrate, compare
from .conversion.text_file import text_batches
from .demo import Playground, launch_demo
from .files import check_target
from .hub import from_pretrained, loading_class, save_pretrained
from .model import doctor, is_sparse, sparse_config, sparsify, unsparsify
from .model.saved_config import block_of
from .program import program_of

_MAP = 'a map\'s name, or JSON: \'{"name": "entmax", "alpha": 1.33}\''
# The files of processors, of images and of sound too; copied as they are.
_PROCESSOR = {PROCESSOR_NAME, IMAGE_PROCESSOR_NAME, FEATURE_EXTRACTOR_NAME, VIDEO_PROCESSOR_NAME, CHAT_TEMPLATE_FILE}
DEMO_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: those after the program's name; None takes the process's own.

    Returns:
        The exit status: 0, or 1 where ``doctor`` finds the model unsound. What the API refuses ends the process with
        status 2 and its message; a program that is run ends it by itself.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        status = options.run(options)
    except (ValueError, TypeError, NotImplementedError, OSError, ImportError) as refusal:
        parser.error(str(refusal))
    if callable(status):  # a program: its errors are its own
        status()
        return 0
    return status


def _convert(options: argparse.Namespace) -> int:
    model = _sparse(options)
    _print_maps(model)
    _save(model, options)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    found = doctor(_load(options.model), options.attn, options.head)
    print(found)
    return 0 if found.sound else 1


def _compare(options: argparse.Namespace) -> int:
    model = _load(options.model)
    found = compare(
        model,
        _batches(model, options),
        options.attn,
        options.head,
        budget=options.budget,
        max_batches=options.max_batches,
    )
    print(found)
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    model = _sparse(options)
    names = ("per_head", "fit_alpha", "fit_attention", "edges", "coverage", "classes", "max_batches")
    print(calibrate(model, _batches(model, options), **{name: getattr(options, name) for name in names}))
    _save(model, options)
    return 0


def _demo(options: argparse.Namespace) -> int:
    model = _load(options.model)
    if is_sparse(model):
        _say("made dense: the page has maps of its own")
        unsparsify(model)
    launch_demo(Playground(model, _own_tokenizer(options.model)), port=options.port)
    return 0


def _program(options: argparse.Namespace) -> Callable[[], None]:
    found = program_of(options.program, options.module)
    sys.argv = [options.program, *options.arguments]
    return found


def _sparse(options: argparse.Namespace) -> PreTrainedModel:
    """The model of the call, made sparse, or as it was saved sparse where no map is given; it can be saved."""
    check_target(options.out)
    model = _load(options.model)
    if is_sparse(model):
        if options.attn is not None or options.head is not None:
            raise ValueError(
                f"{options.model} is sparse already: leave --attn and --head out, or give the dense model"
            )
        return model
    _say(f"making {type(model).__name__} sparse")
    return sparsify(model, options.attn, options.head)


def _load(path: str) -> Any:
    _say(f"reading {path}")
    if _is_saved(path, [ADAPTER_CONFIG_NAME]):
        return from_pretrained(path)
    try:
        config = AutoConfig.from_pretrained(path)
    except (AttributeError, TypeError) as error:  # JSON, but no object
        raise ValueError(f"config.json of {path} is no configuration: {error}") from error
    load = loading_class(None, config).from_pretrained if block_of(config) is None else from_pretrained
    try:
        return load(path)
    except (SafetensorError, UnpicklingError, EOFError, RuntimeError) as error:
        reason = str(error) or "the file ends too early"
        raise ValueError(f"the weights of {path} cannot be read: {reason}") from error


def _batches(model: PreTrainedModel, options: argparse.Namespace) -> list[dict[str, Any]]:
    tokenizer = _own_tokenizer(options.model)
    return text_batches(options.data, model, tokenizer, batch_size=options.batch_size, max_length=options.max_length)


class _NoTokenizerError(ValueError):
    """No tokenizer was saved with a model."""


def _own_tokenizer(path: str) -> Any:
    """The tokenizer saved with a model.

    Raises:
        _NoTokenizerError: there is none: Transformers makes one that knows no words, or misses a file.
        ImportError: it needs a package that is missing.
    """
    names, problem = {"tokenizer_config.json", "tokenizer.json"}, None
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        if _is_saved(path, names | set(tokenizer.vocab_files_names.values())):
            return tokenizer
    except (KeyError, OSError, TypeError, ValueError) as error:
        if _is_saved(path, names):
            raise
        problem = error
    raise _NoTokenizerError(
        f"{path} has no tokenizer; save the model's there: tokenizer.save_pretrained({path!r})"
    ) from problem


def _is_saved(path: str, names: Iterable[str]) -> bool:
    return any(_found(path, name) for name in names)


def _found(path: str, name: str) -> str | None:
    found: str | None = cached_file(path, name, _raise_exceptions_for_missing_entries=False)
    return found


def _save(model: PreTrainedModel, options: argparse.Namespace) -> None:
    """Save a model, with the tokenizer and the processor that were saved with the dense one."""
    tokenizer = None
    with suppress(_NoTokenizerError):
        tokenizer = _own_tokenizer(options.model)
    of_processor = [found for name in _PROCESSOR if (found := _found(options.model, name)) is not None]
    save_pretrained(model, options.out)
    if tokenizer is not None:
        tokenizer.save_pretrained(options.out)
    for file in of_processor:
        if Path(file).resolve().parent != Path(options.out).resolve():
            shutil.copy(file, options.out)
    _say(f"wrote {options.out}")


def _print_maps(model: PreTrainedModel) -> None:
    """One line for each kind of attention and run of layers with the same map, and one for the head."""
    config = sparse_config(model)
    layers: dict[tuple[str, str], list[int]] = {}
    for _, site in attention_sites(model):
        shown = "softmax" if site.map_config is None else json.dumps(site.map_config.to_dict())
        layers.setdefault((site.kind, shown), []).append(site.layer)
    rows = [(kind, ", ".join(map(str, sorted(set(found)))), shown) for (kind, shown), found in layers.items()]
    rows.append(("head", "", "softmax" if config.head is None else json.dumps(config.head.to_dict())))
    width = max(len(layer) for _, layer, _ in rows)
    print(f"{'part':<10}{'layers':<{max(width, 6) + 2}}map")
    for kind, layer, shown in rows:
        print(f"{kind:<10}{layer:<{max(width, 6) + 2}}{shown}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _map(text: str) -> Any:
    if not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error.msg}): {text}") from error


def _default(api: Callable[..., Any], name: str) -> Any:
    """The default of an argument of the API, which the command line has too."""
    return inspect.signature(api).parameters[name].default


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hf_sparse", description="Make Transformers models sparse.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, help: str) -> argparse.ArgumentParser:
        own = commands.add_parser(name, help=help, description=help)
        own.set_defaults(run=run)
        own.add_argument("model", help="a folder or a Hub id")
        own.add_argument("--attn", type=_map, help=_MAP)
        own.add_argument("--head", type=_map, help=_MAP)
        return own

    def with_data(own: argparse.ArgumentParser, api: Callable[..., Any]) -> None:
        own.add_argument(
            "--data", type=Path, required=True, help="text, one example a line; SOURCE<tab>TARGET in pairs"
        )
        own.add_argument(
            "--batch-size", type=int, default=_default(text_batches, "batch_size"), help="texts a batch (%(default)s)"
        )
        own.add_argument(
            "--max-length",
            type=int,
            default=_default(text_batches, "max_length"),
            help="tokens kept of a text (%(default)s)",
        )
        own.add_argument(
            "--max-batches", type=int, default=_default(api, "max_batches"), help="batches to read (%(default)s)"
        )

    command("convert", _convert, "make a model sparse and save it").add_argument("out", help="the folder to write")
    command("doctor", _doctor, "try sparsify on a model and report; status 1 where it is not sound")
    comparing = command("compare", _compare, "measure what sparsity would cost, head by head")
    with_data(comparing, compare)
    comparing.add_argument(
        "--budget",
        type=float,
        default=_default(compare, "budget"),
        help="largest divergence from the dense output: nats a position, or a share of the variance (%(default)s)",
    )
    calibrating = command(
        "calibrate", _calibrate, "fit temperatures, alphas and thresholds to data, and save the sparse model"
    )
    calibrating.add_argument("out", help="the folder to write")
    switches = {
        "--per-head": "settings for each head of attention (default), or for each layer",
        "--fit-alpha": "fit alphas and temperatures (default), or temperatures alone",
        "--fit-attention": "fit attention and the head (default), or the head alone, for attention trained sparse",
    }
    for flag, help in switches.items():
        default = _default(calibrate, flag.strip("-").replace("-", "_"))
        calibrating.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=help)
    calibrating.add_argument(
        "--edges", type=float, metavar="SHARE", help="largest share of attention's weights to keep"
    )
    goals = calibrating.add_mutually_exclusive_group()
    goals.add_argument(
        "--coverage", type=float, metavar="P", help="chance that the head's support holds the next token"
    )
    goals.add_argument(
        "--classes", type=float, metavar="N", help="mean number of tokens that the head leaves possible"
    )
    with_data(calibrating, calibrate)
    running = commands.add_parser(
        "run",
        help="run another program, in which sparse checkpoints load",
        description="Run a program with hf_sparse imported: python -m hf_sparse run PROGRAM ARGUMENTS.",
    )
    running.set_defaults(run=_program)
    running.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as after python -m")
    running.add_argument("program", metavar="PROGRAM", help="a script, or a command that a package installed")
    running.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="its own")
    showing = commands.add_parser("demo", help="a page to play with a model", description="A page to play with.")
    showing.set_defaults(run=_demo)
    showing.add_argument("--model", default=DEMO_MODEL, help="a folder or a Hub id (default: %(default)s)")
    showing.add_argument("--port", type=int, help="of this machine; the first that is free from 7860 on")
    return parser


if __name__ == "__main__":
    sys.exit(main())
