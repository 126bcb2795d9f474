"""Random calls with bad values: each is refused by name, and leaves the model as it was."""

from __future__ import annotations

import linecache
import random
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hf_sparse
from tests.bad_calls import decoding, files, mathematics, models, settings, training  # noqa: F401  they enter their families
from tests.bad_calls.calls import FAMILIES, BadCall, World
from tests.tiny_models import tiny_model, tokens

CALLS = 500
REFUSALS = (ValueError, TypeError, NotImplementedError, FileNotFoundError, IndexError)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("bad-calls")
    sparse = hf_sparse.sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    hf_sparse.save_pretrained(sparse, folder / "saved")
    inputs = {"input_ids": tokens()}
    batches = [{"input_ids": tokens(), "labels": tokens()}]
    dense = tiny_model("llama", seed=3)
    return World(dense, sparse, folder / "saved", folder, inputs, batches)


def drawn() -> Iterator[tuple[int, str, int]]:
    """(number, family, seed) of every call."""
    rng = random.Random(2026)
    names, weights = zip(*((name, weight) for name, (weight, _) in FAMILIES.items()), strict=True)
    for number, name in enumerate([*names, *rng.choices(names, weights, k=CALLS - len(names))]):
        yield number, name, rng.randrange(2**31)


def problem_with(call: BadCall) -> str | None:
    """Why the answer to a bad call is not a refusal that helps, or None."""
    try:
        returned = call.make()
    except REFUSALS as error:
        return None if refused_by_name(error, call.named) else f"cryptic: {_shown(error)}"
    except OSError as error:  # documented by Transformers for paths
        own = "transformers" in traceback.extract_tb(error.__traceback__)[-1].filename
        return None if own and any(name in str(error) for name in call.named) else f"cryptic: {_shown(error)}"
    except Exception as error:  # noqa: BLE001
        return f"cryptic: {_shown(error)}"
    return f"accepted, returned {str(returned)[:60]!r}"


def refused_by_name(error: Exception, named: tuple[str, ...]) -> bool:
    """Whether it was raised on purpose, here or by Transformers, with a message that names what is wrong."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    raised = linecache.getline(last.filename, last.lineno or 0).strip().startswith("raise ")
    ours = "hf_sparse" in last.filename or "transformers" in last.filename
    return raised and ours and any(name in str(error) for name in named)


def _shown(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {' '.join(str(error).split())[:200]}"


def state_of(world: World) -> list[Tensor]:
    with torch.no_grad():
        return [model(**world.inputs).logits for model in (world.dense, world.sparse)]


def test_bad_calls_are_refused_by_name_and_change_no_model(world):
    before = state_of(world)
    config = hf_sparse.sparse_config(world.sparse)
    problems = []
    for number, name, seed in drawn():
        call = FAMILIES[name][1](random.Random(seed), world)
        problem = problem_with(call)
        if hf_sparse.is_sparse(world.dense):
            hf_sparse.unsparsify(world.dense)
            problem = problem or "the model became sparse"
        after = state_of(world)
        if not all(map(torch.equal, before, after)) or hf_sparse.sparse_config(world.sparse) != config:
            problem = f"{problem}; a model changed"
        if problem:
            problems.append(f"{number} {name}: {' '.join(call.text[-200:].split())}: {problem}")
            before, config = after, hf_sparse.sparse_config(world.sparse)
    assert not problems, f"{len(problems)} problems\n" + "\n".join(problems)
