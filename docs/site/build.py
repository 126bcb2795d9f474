"""The documentation as a site: ``python docs/site/build.py`` writes it to out/site/html; any warning is an error.

The pages are those of the repository, at the same places, and three kinds that are derived: the API from docstrings,
the gallery from the pictures that pages show, and the text of source files that pages link to.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package of this repository

from gallery import gallery_page
from pages import ROOT, with_sources, written_pages
from reference import reference_pages

HERE = Path(__file__).parent
OUT = ROOT / "out" / "site"
# The order of the guides. A page that is missing here fails the build.
GUIDES = {
    "Guides": ["using", "maps", "training", "pretrained", "conversion", "annealing", "distillation", "trl"],
    "Decoding": ["decoding", "conditioning", "certificates", "exploring"],
    "Coverage": ["coverage", "fertility"],
    "Facts": ["claims", "support", "numerics", "gpu"],
}
WIDE = "---\nhide: [navigation]\n---\n\n"
PROJECT = ["CHANGELOG.md", "CONTRIBUTING.md", "docs/releasing.md"]


def build() -> None:
    """Write the pages and the settings, and run mkdocs on them."""
    pages = written_pages()
    reference = reference_pages()
    gallery = {"docs/gallery.md": gallery_page(pages)}
    navigation = order(pages, reference)
    staged = with_sources(pages) | reference | gallery
    staged["README.md"] = WIDE + staged["README.md"]
    shutil.rmtree(OUT, ignore_errors=True)
    for name, text in staged.items():
        path = OUT / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "pictures", OUT / "pages" / "docs" / "pictures")
    for file in ("style.css", "iframe-worker.js"):
        shutil.copy(HERE / file, OUT / "pages" / file)
    settings = {
        "INHERIT": os.path.relpath(HERE / "mkdocs.yml", OUT),
        "docs_dir": "pages",
        "site_dir": "html",
        "nav": navigation,
        "not_in_nav": "\n".join(sorted(staged.keys() - pages.keys() - reference.keys() - gallery.keys())),
    }
    (OUT / "mkdocs.yml").write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(OUT / "mkdocs.yml")]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    if subprocess.run(command, cwd=ROOT, env=quiet, check=False).returncode:
        sys.exit("the site has warnings, which are errors")
    print(f"open {(OUT / 'html' / 'index.html').relative_to(ROOT)}")


def order(pages: dict[str, str], reference: dict[str, str]) -> list[object]:
    """The pages as tabs of the site: guides in the order above, all others in that of their names."""

    def below(folder: str) -> list[str]:
        return sorted((name for name in pages if name.startswith(f"{folder}/")), key=lambda name: name.count("/"))

    guides = [{title: [f"docs/{name}.md" for name in names]} for title, names in GUIDES.items()]
    return [
        {"Home": "README.md"},
        {"Guides": guides},
        {"Notebooks": below("docs/notebooks")},
        {"Gallery": "docs/gallery.md"},
        {"API": list(reference)},
        {"Recipes": below("recipes")},
        {"Measured": [*below("benchmarks"), {"Model cards": below("model_cards")}]},
        {"Project": PROJECT},
    ]


if __name__ == "__main__":
    build()
