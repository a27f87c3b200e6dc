"""`sgdf theory`: its files, its page, its error messages."""

import json
import re
import subprocess
import sys

import pytest

from sgdf_lab.cli import tools
from sgdf_lab.cli.main import parse
from sgdf_lab.support.errors import UserError
from sgdf_lab.theory.result import Check, Curve, Panel, Result


def options(*arguments):
    return parse(["theory", *arguments])


@pytest.fixture
def lab():
    pytest.importorskip("rich")
    pytest.importorskip("matplotlib")


def test_writes_numbers_page_and_figures(lab, tmp_path, capsys):
    out = tmp_path / "deep" / "theory"
    tools.run_theory(options("--only", "step-sums", "gradient-sum", "--out", str(out)))
    record = json.loads((out / "results.json").read_text("utf-8"))
    assert [entry["name"] for entry in record["statements"]] == ["step-sums", "gradient-sum"]
    assert {"command", "commit", "machine", "seconds"} <= set(record)
    assert (out / "figures" / "step-sums.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "figures" / "step-sums.svg").read_text("utf-8")
    page = (out / "theory.html").read_text("utf-8")
    assert page.count("<section") == 2
    assert "2 do not hold as printed" in page
    # Nothing is fetched: every link is inside the page.
    assert page.count("<svg") >= 2
    assert "Content-Security-Policy" in page
    assert set(re.findall(r'(?:src|href)="(\w*[:#]?)', page)) == {"#"}
    shown = capsys.readouterr().out
    assert "step-sums" in shown
    assert "theory.html" in shown


def test_the_page_escapes_what_it_shows(lab, tmp_path):
    from sgdf_lab.support import document
    from sgdf_lab.theory import output

    evil = '<script>"&'
    panel = Panel(evil, evil, evil, (Curve(evil, [1, 2], [1, 2]),))
    check = Check(evil, 1, "<=", 2)
    result = Result(evil, evil, evil, evil, evil, (check,), evil, (panel,), evil)
    record = {"command": evil, "commit": evil, "seconds": 1}
    record["machine"] = {"device": evil, "python": evil, "numpy": evil}
    document.write(
        tmp_path / "page.html", evil, output.page_body([result]), output.source_of(record)
    )
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;&quot;&amp;" in text


def test_formulas_on_the_page_have_minus_signs_and_words_keep_their_hyphens(lab):
    from sgdf_lab.theory.output import minus_signs

    assert minus_signs("non-convex: 1-β₁ < g - m̂, 1e-300") == "non-convex: 1−β₁ < g − m̂, 1e−300"


def test_the_same_numbers_give_the_same_figure(lab):
    from sgdf_lab.support.figures import inline_svg
    from sgdf_lab.theory.output import draw

    panel = Panel("t", "x", "y", (Curve("m̂ₜ", [1, 2], [1, 2], band=[0.1, 0.1]),))
    assert inline_svg(draw([panel])) == inline_svg(draw([panel]))


def test_an_unknown_name_is_answered_with_the_near_one(lab, tmp_path):
    with pytest.raises(UserError, match="did you mean wiener-gain"):
        tools.run_theory(options("--only", "wiener-gian", "--out", str(tmp_path)))


def test_a_file_in_the_way_is_named(lab, tmp_path):
    (tmp_path / "theory").write_text("")
    with pytest.raises(UserError, match="--out"):
        tools.run_theory(options("--only", "step-sums", "--out", str(tmp_path / "theory")))


def test_importing_needs_neither_matplotlib_nor_rich():
    code = (
        "import sys; import sgdf_lab.theory as t; from sgdf_lab.cli.main import parse;"
        "parse(['theory']); t.statements()['gradient-sum']();"
        "sys.exit(bool({'matplotlib', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
