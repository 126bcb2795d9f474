"""The page's layout, in Gradio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..functional.arguments import check_type
from .drawing import STYLE, attention_html, hypotheses_html, next_tokens_html
from .playground import SOFTMAX_MAPS, Maps, Playground

if TYPE_CHECKING:
    import gradio

INTRODUCTION = """# hf_sparse: a model with exact zeros

Softmax gives every token some weight. With entmax most weights are exactly zero, so that what is left can be read,
counted and proved. On the left the model as it was, on the right the same weights with the maps you set."""
CAPTIONS = {
    "attentions": "Within the text",
    "encoder_attentions": "Within the text read",
    "decoder_attentions": "Within the text written",
    "cross_attentions": "From the text written to the text read",
}
QUESTION, BEGINNING = "What is the capital of France? Answer with one word.", "The capital of France is"


def demo_page(playground: Playground, *, text: str | None = None) -> gradio.Blocks:
    """The page for one model.

    Args:
        playground: the model, and what can be asked of it.
        text: that the page opens with; None takes one that fits the model.

    Returns:
        The page, not yet served.

    Raises:
        TypeError: no ``Playground``.
        ImportError: Gradio is not installed.
    """
    check_type("playground", playground, Playground, "Playground(model, tokenizer)")
    gr = _gradio()
    text = text or (QUESTION if playground.chat else BEGINNING)
    config = playground.model.config.get_text_config(decoder=True)
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    with gr.Blocks(title="hf_sparse", analytics_enabled=False) as page:
        gr.Markdown(INTRODUCTION)
        words = gr.Textbox(text, label="Text", lines=2)
        chat = gr.Checkbox(playground.chat, label="As a question to a chat model", visible=playground.chat)
        with gr.Row():
            attention_alpha = gr.Slider(
                1, 2, 1.5, step=0.05, label="Attention: alpha", info="1 is softmax, 2 is sparsemax"
            )
            head_alpha = gr.Slider(
                1, 2, 1.5, step=0.05, label="Next token: alpha", info="1 is softmax, 2 is sparsemax"
            )
            attention_temperature = gr.Slider(
                0.5, 8, 2, step=0.5, label="Attention: temperature", info="higher: fewer zeros"
            )
            head_temperature = gr.Slider(
                0.5, 8, 2, step=0.5, label="Next token: temperature", info="higher: more tokens"
            )
        maps = [attention_alpha, head_alpha, attention_temperature, head_temperature]
        show = gr.Button("Show", variant="primary", elem_id="show")
        with gr.Tab("Next token"):
            tokens = _pair(gr, "tokens")
        with gr.Tab("Attention"):
            with gr.Row():
                kind = gr.Dropdown(
                    [(CAPTIONS[name], name) for name in playground.kinds],
                    value=playground.kinds[0],
                    label="Attention",
                    visible=len(playground.kinds) > 1,
                )
                layer = gr.Slider(1, layers, (layers + 1) // 2, step=1, label="Layer")
                head = gr.Slider(1, heads, 1, step=1, label="Head")
            gr.Markdown("Rows look at columns. A cell without colour is exactly zero; hover for the number.")
            weights = _pair(gr, "attention")
        with gr.Tab("Complete answers"):
            gr.Markdown("The likeliest complete outputs as a tree, and what a search can prove about them.")
            with gr.Row(equal_height=True):
                length = gr.Slider(1, 32, 12, step=1, label="Longest output, in tokens")
                seconds = gr.Slider(1, 60, 10, step=1, label="Seconds for each search")
            search = gr.Button("Search", elem_id="search")
            trees = _pair(gr, "hypotheses")

        def next_tokens(*values: Any) -> list[str]:
            text, chat, *settings = values
            found = [playground.next_tokens(text, m, chat=chat) for m in (SOFTMAX_MAPS, Maps(*settings))]
            return [next_tokens_html(one) for one in found]

        def attention(*values: Any) -> list[str]:
            text, chat, kind, layer, head, *settings = values
            both = (SOFTMAX_MAPS, Maps(*settings))
            found = [playground.attention(text, m, int(layer) - 1, int(head) - 1, kind=kind, chat=chat) for m in both]
            return [attention_html(one) for one in found]

        def hypotheses(*values: Any) -> list[str]:
            text, chat, length, seconds, *settings = values
            budget = {"chat": chat, "max_new_tokens": int(length), "max_seconds": seconds}
            found = [playground.hypotheses(text, m, **budget) for m in (SOFTMAX_MAPS, Maps(*settings))]
            return [hypotheses_html(one, playground.tokenizer) for one in found]

        named = _refused_by_name(gr)
        questions = {
            "tokens": (named(next_tokens), [words, chat, *maps], tokens),
            "attention": (named(attention), [words, chat, kind, layer, head, *maps], weights),
        }
        asked = [page.load, show.click, words.submit, *(slider.release for slider in maps)]
        for name, question in questions.items():
            more = [kind.change, layer.release, head.release] if name == "attention" else []
            gr.on([*asked, *more], *question, show_progress="minimal", trigger_mode="always_last")
        search.click(named(hypotheses), [words, chat, length, seconds, *maps], trees)
    return page


def launch_demo(playground: Playground, *, port: int | None = None, **options: Any) -> None:
    """Serve the page until it is interrupted.

    Args:
        playground: the model.
        port: None takes the first that is free from 7860 on.
        **options: for Gradio's ``launch``.

    Raises:
        ImportError: Gradio is not installed.
        OSError: the port is taken.
        ValueError: no machine has the port.
    """
    if port is not None and not 0 < port < 1 << 16:
        raise ValueError(f"port must be from 1 to 65535, or None, was {port}")
    gr = _gradio()
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    theme = gr.themes.Default(primary_hue="indigo", **fonts)  # these fonts are the reader's own
    demo_page(playground).launch(server_port=port, theme=theme, css=STYLE, **options)


def _gradio() -> Any:
    try:
        import gradio
    except ImportError as error:
        raise ImportError("the page needs Gradio: pip install 'hf_sparse[demo]'") from error
    return gradio


def _pair(gr: Any, name: str) -> list[Any]:
    """Two places side by side, or one above the other on a phone: softmax and the maps that are set."""
    with gr.Row():
        places = []
        for title, side in (("Softmax", "dense"), ("Sparse", "sparse")):
            with gr.Column(min_width=300):
                gr.Markdown(f"### {title}")
                places.append(gr.HTML(elem_id=f"{name}-{side}"))
    return places


def _refused_by_name(gr: Any) -> Any:
    """What the model refuses appears on the page in its own words."""

    def wrapped(answer: Any) -> Any:
        def call(*values: Any) -> Any:
            try:
                return answer(*values)
            except ValueError as refusal:
                raise gr.Error(str(refusal)) from refusal

        return call

    return wrapped
