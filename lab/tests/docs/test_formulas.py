"""Formulas of docstrings and pages become TeX."""

import sys

import pytest

from docs.markdown_blocks import ROOT

sys.path.insert(0, str(ROOT / "docs"))  # as MkDocs does for its hooks
import formulas


@pytest.mark.parametrize(
    ("text", "tex"),
    [
        ("m / (1 - b1^t)", r"\frac{m}{1 - \beta_1^{t}}"),
        ("s (1-b1^2t) / (1+b1)", r"\frac{s\,(1 - \beta_1^{2t})}{1 + \beta_1}"),
        ("p - lr g^ / (sqrt(v^) + eps)",
         r"p - \frac{\mathrm{lr}\,\hat{g}}{\sqrt{\hat{v}} + \varepsilon}"),
        ("gain_scale K^gain_power", r"\mathrm{gain\_scale}\,K^{\mathrm{gain\_power}}"),
        ("(a + b) / 2 (c)", r"\frac{a + b}{2}\,(c)"),
        ("(a) (b) / c", r"\frac{(a)\,(b)}{c}"),
        ("K^0.5", "K^{0.5}"),
    ],
)  # fmt: skip
def test_a_formula_as_tex(text, tex):
    assert formulas.tex(text) == tex


def test_only_blocks_of_formulas_and_sentences_are_typeset():
    code = '<div class="highlight"><pre><span></span><code>{}</code></pre></div>'
    shown = code.format("m  &lt;- b1 m        trend\n")
    assert r"m &amp;\leftarrow \beta_1\,m &amp;&amp; \text{trend}" in formulas.typeset(shown)
    assert 'class="formula">\\hat{m}</span> is late' in formulas.typeset("<p>m^ is late")
    assert r'class="formula">\beta_1^{t}</span>)' in formulas.typeset("<p>m / (1 - b1^t)")
    for same in (code.format("from sgdf import SGDF"), "<code>m^</code>", "<p title='m^'>b</p>"):
        assert formulas.typeset(same) == same
