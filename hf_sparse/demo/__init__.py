"""A page to play with: attention, next tokens and complete hypotheses of a model, dense beside sparse.

``python -m hf_sparse demo`` opens it. The page needs Gradio (``pip install 'hf_sparse[demo]'``); what it shows is
computed by ``Playground``, which needs nothing.
"""

from .page import demo_page, launch_demo
from .playground import HypothesesView, Maps, NextTokens, Playground, TokenAttention

__all__ = ["HypothesesView", "Maps", "NextTokens", "Playground", "TokenAttention", "demo_page", "launch_demo"]
