"""What does a call say when it refuses its arguments?"""

from collections.abc import Callable

import pytest

from interp import InputError


def refusal(call: Callable[..., object], *arguments: object, **settings: object) -> str:
    """The single line of a call's `InputError`."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **settings)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1_000
    return message
