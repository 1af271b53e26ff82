"""What a person reads."""

from envgym.conformance.report import Check, CheckStatus, as_text, is_passed

CHECKS = (
    Check(name="first", status=CheckStatus.PASS, detail="6 scripts", seconds=0.123),
    Check(name="second_one", status=CheckStatus.FAIL, detail="a rule is broken", seconds=1.0),
    Check(name="third", status=CheckStatus.SKIP, detail="no oracle", seconds=0.0),
)


def test_text_has_one_line_per_check_and_names_what_was_not_checked() -> None:
    assert as_text("toys/counter-v0", CHECKS).splitlines() == [
        "toys/counter-v0",
        "  PASS  first        0.12 s  6 scripts",
        "  FAIL  second_one   1.00 s  a rule is broken",
        "  SKIP  third        0.00 s  no oracle",
        "  1 passed, 1 failed, 1 not checked",
        "  not checked: third",
    ]


def test_passed_means_that_nothing_failed() -> None:
    assert not is_passed(CHECKS)
    assert is_passed(CHECKS[::2])
    assert is_passed(())
