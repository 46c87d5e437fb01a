"""What is said about a mistake that the user can correct."""

import pytest

from gasam.lab.errors import InputError


def refusal(action, *given, **options):
    """The one sentence with which a call is refused."""
    with pytest.raises(InputError) as caught:
        action(*given, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
