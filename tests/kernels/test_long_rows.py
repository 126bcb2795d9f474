"""Rows of 262,144 classes, of the kinds that are hardest for a solver, and rows that lie far apart in memory."""

import pytest
import torch

from hf_sparse.functional import entmax
from hf_sparse.kernels import Listing, triton_multiply
from hf_sparse.losses import alpha_relu_loss, entmax15_loss, entmax_loss, linear_alpha_relu_loss, linear_entmax_loss
from hf_sparse.losses.linear import _triton as linear_triton
from tests.kernels.devices import DEVICE, INTERPRETED, needs_triton
from tests.tolerances import GRADIENT

pytest.importorskip("triton")

from hf_sparse.kernels.gpu import rows as row_kernels
from hf_sparse.kernels.gpu.decode import decode_scores, decode_values
from hf_sparse.kernels.gpu.rows import row_solutions, row_weights
from hf_sparse.kernels.gpu.support import list_support, multiply

pytestmark = needs_triton
V = 262_144
# Of the largest entry of a row. The interpreter cuts float32 off where a GPU rounds it to bfloat16; a Jacobian product
# is one of rounded weights.
RELATIVE = {torch.float32: 2e-6, torch.bfloat16: 2**-6}
# By name: the exponent, and where to find support; for alpha-ReLU also the threshold, at which all classes have some.
MAPS = {
    "entmax 1.5": (1.5, None),
    "sparsemax": (2.0, None),
    "entmax 1.3": (1.3, None),
    "alpha-ReLU": (1.5, -(V**-0.5)),
}
TARGETS = torch.tensor([7, 5, V - 1, 3, 1000, -100])


@pytest.fixture
def few_blocks(monkeypatch):
    """Blocks of 32,768 scores: the interpreter's time is that of its blocks, not of their scores."""
    if INTERPRETED:
        monkeypatch.setattr(row_kernels, "LARGEST_BLOCK", 2**15)


def hard_rows(alpha):
    """All equal; one huge; support at the very end; support of all, none equal; almost all masked; all masked."""
    z = torch.zeros(6, V)
    z[1, 5] = 1e4
    z[2] = -20.0
    z[2, -3:] = torch.tensor([0.0, 0.25, -0.25])
    shuffled = torch.randperm(V, generator=torch.Generator().manual_seed(0))
    z[3] = torch.linspace(0, 0.37 * V ** (1 - alpha) / (alpha - 1), V)[shuffled]
    z[4:] = -torch.inf
    z[4, [0, 1000, V - 1]] = torch.tensor([1.0, 1.5, 0.5])
    return z.bfloat16().to(DEVICE)


def loss_of(name):
    alpha, tau = MAPS[name]
    if tau is None:
        return lambda z, y, **options: entmax_loss(z, y, alpha, **options)
    return lambda z, y, **options: alpha_relu_loss(z, y, alpha, tau, **options)


def close(actual, expected, tolerance):
    """Every row close to the expected one, relative to its largest entry."""
    largest = expected.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    torch.testing.assert_close(actual.double() / largest, expected / largest, atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in MAPS), ("entmax 1.5", torch.bfloat16)], ids=str
)
@pytest.mark.usefixtures("few_blocks")
def test_losses_and_their_gradients_are_those_of_float64(name, dtype):
    z, y, results = hard_rows(MAPS[name][0]), TARGETS.to(DEVICE), []
    for impl, precision in (("triton", dtype), ("torch", torch.float64)):
        leaf = z.to(precision).requires_grad_()
        loss = loss_of(name)(leaf, y, reduction="none", impl=impl)
        results.append((loss.detach(), *torch.autograd.grad(loss.sum(), leaf)))
    (loss, slope), (true_loss, true_slope) = results
    assert slope.dtype == dtype
    torch.testing.assert_close(loss.double(), true_loss, atol=2e-6, rtol=2e-6)
    close(slope, true_slope, RELATIVE[dtype])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name, (_, tau) in MAPS.items() if tau is None), ("entmax 1.5", torch.bfloat16)],
    ids=str,
)
@pytest.mark.usefixtures("few_blocks")
def test_maps_and_their_gradients_are_those_of_float64(name, dtype):
    alpha = MAPS[name][0]
    z, results = hard_rows(alpha), []
    upstream = torch.randn(z.shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(DEVICE)
    for impl, precision in (("triton", dtype), ("torch", torch.float64)):
        leaf = z.to(precision).requires_grad_()
        p = entmax(leaf, alpha, impl=impl)
        results.append((p.detach(), *torch.autograd.grad(p, leaf, upstream.to(precision))))
    assert (results[1][0] > 0).sum(-1).tolist() == [V, 1, 3, V, 2 if alpha == 2 else 3, 0]
    for actual, expected in zip(*results):
        assert actual.dtype == dtype
        close(actual, expected, RELATIVE[dtype])


@pytest.mark.parametrize(("name", "fused"), [
    ("entmax 1.5", linear_entmax_loss),
    ("alpha-ReLU", lambda *tensors, **options: linear_alpha_relu_loss(*tensors, *MAPS["alpha-ReLU"], **options)),
])  # fmt: skip
@pytest.mark.usefixtures("few_blocks")
def test_fused_linear_losses_are_those_of_float64(name, fused, monkeypatch):
    """Of an identity for hidden states the logits are the columns of the weights: hard rows, listed and dense."""
    if INTERPRETED:
        monkeypatch.setattr(linear_triton, "triton_multiply", of_rows_with_entries)
    hidden, weight, y = torch.eye(4, device=DEVICE), hard_rows(1.5)[:4].float().T, TARGETS[:4].to(DEVICE)
    results = []
    for precision in (torch.float32, torch.float64):
        leaves = [x.to(precision).requires_grad_() for x in (hidden, weight)]
        if precision == torch.float32:
            loss = fused(*leaves, y, reduction="none", chunk_size=1, impl="triton")
        else:
            loss = loss_of(name)(leaves[0] @ leaves[1].T, y, reduction="none", impl="torch")
        results.append((loss.detach(), *torch.autograd.grad(loss.sum(), leaves)))
    (loss, *slopes), (true_loss, *true_slopes) = results
    torch.testing.assert_close(loss.double(), true_loss, atol=2e-6, rtol=2e-6)
    close(slopes[1].T, true_slopes[1].T, RELATIVE[torch.float32])
    # By the hidden states: (p - y) W, a sum over all classes, whose terms nearly cancel.
    terms = true_slopes[1].T.abs() @ weight.double().abs()
    assert bool(((slopes[0] - true_slopes[0]).abs() <= 1e-4 * terms).all())


def of_rows_with_entries(row, column, value, table, num_rows, dtype):
    """The product by Triton, of the rows that have entries: the interpreter takes minutes for 262,144 rows."""
    found, row = row.unique(return_inverse=True)
    out = table.new_zeros(num_rows, table.shape[1], dtype=dtype)
    return out.index_copy(0, found.long(), triton_multiply(row, column, value, table, len(found), dtype))


def test_blocks_as_they_are_on_a_gpu():
    z = torch.randn(1, V, generator=torch.Generator().manual_seed(V)).to(DEVICE) * 3
    leaf, exact = z.clone().requires_grad_(), z.double().requires_grad_()
    y = torch.tensor([7], device=DEVICE)
    ours, expected = entmax15_loss(leaf, y, impl="triton"), entmax15_loss(exact, y, impl="torch")
    torch.testing.assert_close(ours.double(), expected, atol=1e-5, rtol=0)
    slopes = (torch.autograd.grad(*pair)[0] for pair in ((ours, leaf), (expected, exact)))
    torch.testing.assert_close(*(slope.double() for slope in slopes), atol=GRADIENT[torch.float32], rtol=0)


@pytest.fixture
def apart(tmp_path):
    """A copy of a tensor of three rows, 2^30 entries from one to the next, in a file with holes."""

    def copy(x):
        size = 2 * 2**30 + x[0].numel()
        memory = torch.from_file(str(tmp_path / "memory"), shared=True, size=size, dtype=torch.float16)
        return memory.as_strided(x.shape, (2**30, *x.stride()[1:])).copy_(x)

    return copy


@pytest.mark.skipif(not INTERPRETED, reason="four gigabytes, of a file that has none")
def test_rows_beyond_two_to_the_31_are_solved_written_and_listed(apart):
    z = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).half()
    results = []
    for rows in (apart(z), z):
        solved = row_solutions(rows, 1.5, 2.0, counting=True)
        found = Listing.empty(120, 1, z.device)
        list_support(rows, solved, found, 0, 0, 120, 1.5, 2.0)
        results.append((*solved, row_weights(rows, solved, 1.5, 2.0), *found))
    assert all(torch.equal(*pair) for pair in zip(*results))


@pytest.mark.skipif(not INTERPRETED, reason="four gigabytes, of a file that has none")
def test_tables_and_caches_beyond_two_to_the_31_are_read(apart):
    table = torch.randn(3, 20, generator=torch.Generator().manual_seed(0)).half()
    entries = torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1]), torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(*(multiply(*entries, rows, 2, torch.float32) for rows in (apart(table), table)))
    query = torch.randn(1, 3, 1, 16, generator=torch.Generator().manual_seed(1)).half()
    for shape, heads_first in (((3, 5, 16), True), ((3, 1, 16), False)):
        cache, results = torch.randn(shape, generator=torch.Generator().manual_seed(2)).half(), []
        for keys in (apart(cache), cache):
            keys = (keys if heads_first else keys.transpose(0, 1))[None]
            scores = decode_scores(query, keys, 0.25)
            results.append((scores, decode_values(scores, keys)))
        assert all(torch.equal(*pair) for pair in zip(*results))
