"""The page in a browser: it answers at the width of a desk and of a phone."""

import shutil

import pytest
from playwright.sync_api import sync_playwright

from hf_sparse.demo import Playground, demo_page
from tests.tiny_models import tiny_model
from tests.word_tokenizer import word_tokenizer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def address():
    page = demo_page(Playground(tiny_model("llama"), word_tokenizer()), text="w5 w6 w7")
    _, url, _ = page.launch(prevent_thread_lock=True, quiet=True)
    yield url
    page.close()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_answers_in_a_browser(address, width):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.set_default_timeout(120_000)
        page.goto(address)
        page.wait_for_selector("#tokens-sparse .bars")
        assert "All 23 tokens are possible." in page.inner_text("#tokens-dense")
        assert "of 23 tokens" in page.inner_text("#tokens-sparse")
        page.get_by_role("tab", name="Attention").click()
        page.wait_for_selector("#attention-sparse svg")
        assert "0% of the weights are exactly zero" in page.inner_text("#attention-dense")
        page.get_by_role("tab", name="Complete answers").click()
        page.click("#search")
        page.wait_for_selector("#hypotheses-sparse .proof")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        browser.close()
