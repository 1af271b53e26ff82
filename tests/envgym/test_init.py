"""The public names of the package."""

import envgym


def test_every_public_name_loads() -> None:
    assert dir(envgym) == envgym.__all__
    for name in envgym.__all__:
        assert getattr(envgym, name) is not None


def test_unknown_attribute_is_an_attribute_error() -> None:
    assert not hasattr(envgym, "no_such_name")
