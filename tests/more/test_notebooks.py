"""The notebooks run as they are, and git keeps no outputs of them."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def printed(notebook):
    """All text that the cells of a notebook wrote."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def ran(request, environment):
    notebook = nbformat.read(request.param, as_version=4)
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in notebook.cells)
    return request.param.stem, NotebookClient(notebook, timeout=600, kernel_name="python3").execute()


@pytest.fixture(scope="module")
def environment():
    """Kernels import the package of this repository, and use one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


def test_a_notebook_runs_and_shows_what_it_promises(ran):
    name, notebook = ran
    text = printed(notebook)
    if name == "pretrained":
        assert "'calibrated'" in text
        assert text.count("True") == 2
    elif name == "train_and_prove":
        assert "certificate: " in text
        assert "certificate: None" not in text
    else:
        pictures = [output for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
        assert sum("image/png" in output["data"] for output in pictures) == 2
        assert "KiB" in text
