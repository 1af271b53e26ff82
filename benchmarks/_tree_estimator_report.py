"""x."""


def write_report(result): ...
