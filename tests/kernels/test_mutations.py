"""The checks of the Triton kernels see a wrong index, mask, sign or bound: a planted mistake must fail its check."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest
import torch

import hf_sparse
from hf_sparse.functional import entmax15
from hf_sparse.kernels import Listing
from tests.kernels.devices import DEVICE, needs_triton

pytest.importorskip("triton")

from tests.kernels.test_triton_attention import check_case

pytestmark = needs_triton
FOLDER = Path(hf_sparse.__file__).parent / "kernels" / "gpu"


def check_of(case):
    """The check that is called with the name of a package: the case itself, or attention at a level or at several."""
    if callable(case):
        return case
    levels = (case,) if isinstance(case, str) else case
    return lambda package: check_case(levels, kernels=importlib.import_module(f"{package}.attention"))


def close(actual, expected):
    torch.testing.assert_close(actual.double(), expected, atol=1e-6, rtol=1e-6)


def rows(package):
    """Weights, losses and gradients of rows whose support spans several blocks; those of alpha-ReLU, too."""
    kernels = importlib.import_module(f"{package}.rows")
    kernels.LARGEST_BLOCK = 16
    z = torch.linspace(0, 3, 60, device=DEVICE)[None] * torch.tensor([[0.3], [1.0]], device=DEVICE)
    solved = kernels.row_solutions(z, 1.5, 2.0)
    target, grad = torch.tensor([3, 59], device=DEVICE), torch.tensor([1.0, 0.5], device=DEVICE)
    p = entmax15(z.double(), impl="torch")
    close(kernels.row_weights(z, solved, 1.5, 2.0), p)
    # The conjugate of 1.5-entmax is <p, z> less its entropy.
    close(solved.conjugate, (p * z).sum(-1) - (p.pow(1.5).sum(-1) - 1) / 0.75 - z.amax(-1))
    slopes = grad[:, None] * (p - torch.eye(60, device=DEVICE)[target])
    close(kernels.row_weights(z, solved, 1.5, 2.0, grad, target), slopes)
    solved = kernels.row_solutions(z, 1.5, 2.0, tau=0.4)
    u = (z.double() / 2 - 0.4).clamp(min=0)
    close(solved.conjugate, u.pow(3).sum(-1))
    close(kernels.row_weights(z, solved, 1.5, 2.0), u.square())


def products(package):
    """Products with the Jacobian of rows in several blocks, some of them without weight."""
    kernels = importlib.import_module(f"{package}.rows")
    kernels.LARGEST_BLOCK = 16
    z = torch.linspace(0, 3, 60, device=DEVICE)[None].repeat(2, 1)
    grad = torch.linspace(-1, 2, 120, device=DEVICE).sin().view(2, 60)
    p = entmax15(z.double(), impl="torch")
    s = p.sqrt()
    mean = (s * grad).sum(-1, keepdim=True) / s.sum(-1, keepdim=True)
    close(kernels.row_jacobian_product(p.float(), grad, 1.5), s * (grad - mean))


def decoding(package):
    """Scores of keys in several parts, shared by heads; weights that are all small, over values in several parts."""
    kernels = importlib.import_module(f"{package}.decode")
    q, k = torch.linspace(-1, 1, 3 * 16, device=DEVICE).view(1, 3, 1, 16), torch.ones(1, 1, 2100, 16, device=DEVICE)
    k *= torch.arange(2100.0, device=DEVICE)[:, None] / 2100
    close(kernels.decode_scores(q, k, 0.5), 0.5 * q.double() @ k.double().mT)
    p = torch.full((1, 2, 1, 80), 1 / 80, device=DEVICE)
    v = torch.arange(80.0, device=DEVICE)[:, None].repeat(1, 16)[None, None]
    torch.testing.assert_close(kernels.decode_values(p, v), v.mean(2, keepdim=True).expand(1, 2, 1, 16))


def listing(package):
    """A capped row whose support is in two of its blocks; a sum over more entries than one run."""
    solver, support = (importlib.import_module(f"{package}.{name}") for name in ("rows", "support"))
    z = torch.linspace(0, 3, 1100, device=DEVICE)[None] * 20
    solved = solver.row_solutions(z, 1.5, 2.0, counting=True)
    found = Listing.empty(2200, 1, z.device)
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
GROUPED, LEARNED = "shared keys (4 heads to 2)", "an alpha a head, learned"
BIASED, MASKED = "bias of query and key", "boolean mask, hidden rows"
# By name: the file, what stands there, what it is made, and the check. Where it stands more than once, as in the two
# backward kernels, each place is a mistake of its own.
MUTATIONS = {
    "candidate test too strict": (
        FORWARD,
        "+= tl.max((peak > tau)",
        "+= tl.max((peak > tau + 0.5)",
        "support of every key",
    ),
    "tangent above the norm": (
        FORWARD,
        "tl.minimum(norm, 1.0) *",
        "3 * tl.minimum(norm, 1.0) *",
        "support of every key",
    ),
    "tangent not moved": (FORWARD, "norm - fall * step", "norm + fall * step", "support of every key"),
    "list emptied as it is refined": (FORWARD, "num_kept += found", "num_kept += 0", "causal"),
    "output not normalized": (FORWARD, "out / tl.where(mass > 0, mass, 1.0)[:, None]", "out * 1.001", "causal"),
    "threshold of a query that sees nothing": (FORWARD, "tl.where(mass > 0, tau, -HIDDEN)", "tau - 2", MASKED),
    "Newton's step past the root": ("_newton", "mass - tl.sqrt(mass)", "2 * (mass - 1)", "support of every key"),
    "diagonal tile taken for a full one": ("_tiles", "KEYS - 1 > query_tile", "0 > query_tile", "causal"),
    "diagonal tile left out": ("_tiles", "(tile + 1) * QUERIES + offset", "tile * QUERIES + offset", "causal"),
    "first tile of a window left out": ("_tiles", "start // KEYS", "start // KEYS + (start > 0)", "window of 10"),
    "window off by one": ("_tiles", "- key[None, :] < rules", "- key[None, :] <= rules", "window of 10"),
    "softcap not differentiated": ("_tiles", "slope = 1 - tanh * tanh", "slope = 1 - 0 * tanh", "softcap"),
    "lowest of a mask": ("_tiles", "mask > rules.lowest", "mask > 3 * rules.lowest", ("additive mask", "float16")),
    "mask of another sequence": ("_tiles", "(MASK, batch", "(MASK, 0", "padding on the left"),
    "bias of another head": ("_tiles", "(BIAS, batch, head", "(BIAS, batch, 0", (GROUPED, BIASED)),
    "a row of another place": ("_tiles", "+ index.to", "+ 0 * index.to", "causal"),
    "delta left out": (BACKWARD, "w * (g - delta[:, None])", "w * g", "causal"),
    "wrong Jacobian": (BACKWARD, "ds = w * (", "ds = w * u * (", "causal"),
    "slope of the softcap": (BACKWARD, "(g - delta[:, None]) * slope", "(g - delta[:, None])", "softcap"),
    "gradient of queries not scaled": (BACKWARD, "dq * rules.scaling", "dq", "causal"),
    "gradient of keys not scaled": (BACKWARD, "dk * rules.scaling", "dk", "causal"),
    "values weighed by the slope": (BACKWARD, "(w * u).to(dout.dtype)", "w.to(dout.dtype)", "causal"),
    "head of a group": (BACKWARD, "key_head * group + member", "key_head + member", GROUPED),
    "keys of another head": (BACKWARD, "key_head = head // group", "key_head = head % 2", GROUPED),
    "sign of the logarithm": (BACKWARD, "u - u * tl.log", "u + u * tl.log", LEARNED),
    "sink without weight": (BACKWARD, "total += w_sink", "total += 0 * w_sink", "sinks"),
    "block skipped too eagerly": ("_row_kernels", "shift > 0:", "shift > 0.3:", rows),
    "wrong class": ("_row_kernels", "entry == tl.load(TARGET + row)", "entry == tl.load(TARGET + row) + 1", rows),
    "conjugate without its threshold": ("_row_kernels", "risen / scale + ", "0 * risen + ", rows),
    "sign of a given threshold": ("_row_kernels", "        shift = -tau", "        shift = tau", rows),
    "factor of a row left out": ("_row_kernels", "p * grad)", "p)", rows),
    "support counted short": ("_row_kernels", "(u > 0).to(tl.int32)", "(u > 0.1).to(tl.int32)", listing),
    "mean left out": ("_row_kernels", "s * (g - mean)", "s * g", products),
    "mean of one block": ("_row_kernels", "weighted += tl.sum(s * g, 0)", "weighted = tl.sum(s * g, 0)", products),
    "columns of another block": ("support", "block * BLOCK + tl", "tl", listing),
    "softcap of a listed weight": ("support", "value *= 1 - (z", "value *= 1 + (z", listing),
    "a run left out of a sum": ("support", "total += tl.sum(part, 0)", "total = tl.sum(part, 0)", listing),
    "scores not scaled": ("decode", '"ieee") * scaling', '"ieee")', decoding),
    "a tile of a part left out": ("decode", "range(part * tiles_each,", "range(part * tiles_each + 1,", decoding),
    "values passed over": ("decode", "(p != 0)", "(p > 0.1)", decoding),
}
PLACES = [
    (name, place)
    for name, (file, original, _, _) in MUTATIONS.items()
    for place in range((FOLDER / f"{file}.py").read_text().count(original))
]


def copied(tmp_path, monkeypatch, name):
    """A copy of the kernels' folder that can be imported under a name of its own."""
    shutil.copytree(FOLDER, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / name


@pytest.fixture
def forget():
    """Drop the copies imported by a test."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mutant", "unchanged")]:
        del sys.modules[name]


def test_every_mistake_has_a_place():
    assert {name for name, _ in PLACES} == set(MUTATIONS)


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize(("name", "place"), PLACES)
def test_a_planted_mistake_is_caught(name, place, tmp_path, monkeypatch):
    file, original, planted, case = MUTATIONS[name]
    path = copied(tmp_path, monkeypatch, "mutant") / f"{file}.py"
    parts = path.read_text().split(original)
    path.write_text(original.join(parts[: place + 1]) + planted + original.join(parts[place + 1 :]))
    with pytest.raises((AssertionError, IndexError)):
        check_of(case)("mutant")


@pytest.mark.usefixtures("forget")
def test_an_unchanged_copy_passes(tmp_path, monkeypatch):
    copied(tmp_path, monkeypatch, "unchanged")
    for case in ("causal", rows, products, decoding, listing):
        check_of(case)("unchanged")
