"""What a call says when it refuses what it is given."""

from collections.abc import Callable

import pytest

from interp import InputError


def refusal(call: Callable[..., object], *given: object, **settings: object) -> str:
    """The one line with which a call ends."""
    with pytest.raises(InputError) as caught:
        call(*given, **settings)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1_000
    return message
