"""The checks of the Triton kernels see a wrong index, mask, sign or bound: a planted mistake must fail its check."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest
import torch

import hf_sparse
from hf_sparse.functional import entmax15
from tests.kernels.devices import DEVICE, needs_triton

pytest.importorskip("triton")

from tests.kernels.test_triton_attention import CASES, check

pytestmark = needs_triton
FOLDER = Path(hf_sparse.__file__).parent / "kernels" / "gpu"


def attention_case(name):
    def run(package):
        check(**CASES[name], kernels=importlib.import_module(f"{package}._attention"))

    return run


def rows(package):
    """Weights and loss gradients of a row whose support spans several blocks."""
    kernels = importlib.import_module(f"{package}._rows")
    z = torch.linspace(0, 3, 60, device=DEVICE)[None] * torch.tensor([[0.3], [1.0]], device=DEVICE)
    solved = kernels.solve(z, 1.5, 2.0, block=16)
    target, grad = torch.tensor([3, 59], device=DEVICE), torch.ones(2, device=DEVICE)
    expected = entmax15(z.double(), impl="torch")
    torch.testing.assert_close(kernels.write(z, solved, 1.5, 2.0, block=16).double(), expected, atol=1e-6, rtol=0)
    expected[[0, 1], target] -= 1
    slopes = kernels.write(z, solved, 1.5, 2.0, grad, target, block=16)
    torch.testing.assert_close(slopes.double(), expected, atol=1e-6, rtol=0)


def decoding(package):
    """Weights that are all small, over values in several parts."""
    kernels = importlib.import_module(f"{package}._decode")
    p = torch.full((1, 2, 1, 80), 1 / 80, device=DEVICE)
    v = torch.arange(80.0, device=DEVICE)[:, None].repeat(1, 16)[None, None]
    torch.testing.assert_close(kernels.decode_values(p, v), v.mean(2, keepdim=True).expand(1, 2, 1, 16))


def listing(package):
    """A capped row whose support is in two of its blocks; a sum over more entries than one run."""
    solver, support = (importlib.import_module(f"{package}.{name}") for name in ("_rows", "_support"))
    z = torch.linspace(0, 3, 1100, device=DEVICE)[None] * 20
    solved = solver.solve(z, 1.5, 2.0, counting=True)
    found = support.Listing.empty(2200, 1, z.device)
    support.list_support(z, solved, found, 0, 7, 1100, 1.5, 2.0, softcap=100.0)
    p = entmax15(z.double(), impl="torch")
    expected = torch.zeros_like(p)
    size = int(found.sizes[0])
    expected[0, found.column[:size].long()] = found.value[:size].double()
    torch.testing.assert_close(expected, p * (1 - (z.double() / 100).square()), atol=1e-6, rtol=0)
    assert set(found.row[:size].tolist()) == {7}
    one = torch.ones(300, device=DEVICE)
    total = support.multiply(one.int(), torch.arange(300, device=DEVICE), one, one.cumsum(0)[:, None], 3, one.dtype)
    assert total.tolist() == [[0], [45_150], [0]]


FORWARD, BACKWARD = "_attention_forward", "_attention_backward"
GROUPED, LEARNED = "shared keys (4 heads to 2)", "an alpha a head, with gradient"
MUTATIONS = {
    "candidate test too strict": (FORWARD, "(peak > tau)", "(peak > tau + 0.5)", "support of every key"),
    "list emptied as it is refined": (FORWARD, "num_kept += found", "num_kept += 0", "causal"),
    "output not normalized": (FORWARD, "out / tl.where(mass > 0, mass, 1.0)[:, None]", "out * 1.001", "causal"),
    "Newton's step past the root": ("_newton", "mass - tl.sqrt(mass)", "2 * (mass - 1)", "support of every key"),
    "diagonal tile taken for a full one": ("_tiles", "KEYS - 1 > query_tile", "0 > query_tile", "causal"),
    "window off by one": ("_tiles", "- key[None, :] < window", "- key[None, :] <= window", "window of 10"),
    "softcap not differentiated": ("_tiles", "slope = 1 - tanh * tanh", "slope = 1 - 0 * tanh", "softcap"),
    "lowest of a mask": ("_tiles", "mask > lowest", "mask > 3 * lowest", "additive mask in float16"),
    "delta left out": (BACKWARD, "w * (g - delta[:, None])", "w * g", "causal"),
    "wrong Jacobian": (BACKWARD, "ds = w * (", "ds = w * u * (", "causal"),
    "head of a group": (BACKWARD, "key_head * group + member", "key_head + member", GROUPED),
    "sign of the entropy": (BACKWARD, "-p * exponent", "p * exponent", LEARNED),
    "sink without weight": (BACKWARD, "total += w_sink", "total += 0 * w_sink", "sinks, with gradient"),
    "block skipped too eagerly": ("_row_kernels", "shift > 0:", "shift > 0.3:", rows),
    "wrong class": ("_row_kernels", "entry == tl.load(TARGET + row)", "entry == tl.load(TARGET + row) + 1", rows),
    "support counted short": ("_row_kernels", "(u > 0).to(tl.int32)", "(u > 0.1).to(tl.int32)", listing),
    "columns of another block": ("_support", "block * BLOCK + tl", "tl", listing),
    "softcap of a listed weight": ("_support", "1 - (z / softcap)", "1 + (z / softcap)", listing),
    "a run left out of a sum": ("_support", "total += tl.sum(part, 0)", "total = tl.sum(part, 0)", listing),
    "values passed over": ("_decode", "(p != 0)", "(p > 0.1)", decoding),
}


def copied(tmp_path, monkeypatch, name):
    """A copy of the kernels' folder that can be imported under a name of its own."""
    shutil.copytree(FOLDER, tmp_path / name, ignore=shutil.ignore_patterns("*_ops.py", "__pycache__"))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / name


@pytest.fixture
def forget():
    """Drop the copies imported by a test."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mutant", "unchanged")]:
        del sys.modules[name]


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_mistake_is_caught(name, tmp_path, monkeypatch):
    file, original, planted, case = MUTATIONS[name]
    path = copied(tmp_path, monkeypatch, "mutant") / f"{file}.py"
    source = path.read_text()
    assert original in source
    path.write_text(source.replace(original, planted))
    with pytest.raises((AssertionError, IndexError)):
        (attention_case(case) if isinstance(case, str) else case)("mutant")


@pytest.mark.usefixtures("forget")
def test_an_unchanged_copy_passes(tmp_path, monkeypatch):
    copied(tmp_path, monkeypatch, "unchanged")
    for case in (attention_case("causal"), rows, decoding, listing):
        case("unchanged")
