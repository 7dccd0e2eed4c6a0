"""How do other libraries load without a word? What went wrong they raise, and we say it in a line of our own."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unheard() -> Iterator[None]:
    """Within, no library warns, or logs less than an error: neither is about the model that was asked for."""
    level = logging.root.manager.disable
    logging.disable(max(level, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
