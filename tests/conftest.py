"""What all tests share."""

import gc


def pytest_collection_finish():
    """Leave what is there by now out of garbage collections: Trainer and others ask for one at every call."""
    gc.collect()
    gc.freeze()
