"""What commands share."""

import json

import pytest

from envgym.cli.common import print_json


def test_json_with_text_that_is_no_utf8_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"said": "\ud800 é"})
    assert json.loads(capsys.readouterr().out) == {"said": "\ufffd é"}
