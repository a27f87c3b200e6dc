"""Formulas as TeX: docstrings and pages have them as plain text, which the site typesets.

A block of formulas is one whose every line begins with a short name and ``<-`` or ``=``::

    m  <- b1 m + (1-b1) g        trend
    m^  = m / (1 - b1^t)

In sentences m^, s^, g^ and v^ are typeset, and so are b1, b2 and powers of them and of K.

>>> tex("m / (1 - b1^t)")
'\\\\frac{m}{1 - \\\\beta_1^{t}}'
"""

import html
import re

GREEK = {"b1": r"\beta_1", "b2": r"\beta_2", "beta": r"\beta", "eps": r"\varepsilon", "mu": r"\mu"}
SIGNS = {"<-": r"\leftarrow", "->": r"\to", ",": r",\quad"}
TOKEN = re.compile(r"\^\w+(?:\.\d+)?|<-|->|[A-Za-z_][\w.]*:?|\d+(?:\.\d+)?|\S")
SPLIT = re.compile(r"(<-|=)")
SIGN = re.compile(r"<-|->|=")
LINE = re.compile(r"\s*(?:[a-z]+: +)?[A-Za-z](?:\d|\.grad)?\^?\s+(?:<-|=)\s")
BLOCK = re.compile(r'<div class="(?:language-text )?highlight"><pre>(.*?)</pre></div>', re.DOTALL)
CODE = re.compile(r"(<(pre|code|script|title|textarea)\b.*?</\2>|<[^>]*>)", re.DOTALL)
IN_SENTENCES = re.compile(r"(?<![\w^])(?:[gmsv]\^(?![\w^])|K\^\d(?:\.\d)?|b[12](?:\^\w+|(?!\w)))")


def tex(text: str) -> str:
    """A formula in the arithmetic of docstrings, as TeX."""
    return _Parser(TOKEN.findall(text)).all()


class _Parser:
    """Of sums of products; what two factors have between them is nothing, or a slash."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def next(self) -> str:
        return self.tokens.pop(0)

    def all(self) -> str:
        parts = []
        while self.tokens:
            between = self.tokens[0] in (*SIGNS, *"=+-")
            parts.append(SIGNS.get(sign := self.next(), sign) if between else self.product())
        return " ".join(parts)

    def sum(self) -> str:
        parts = [self.product()]
        while self.tokens and self.tokens[0] in "+-":
            parts += [self.next(), self.product()]
        return " ".join(parts)

    def product(self) -> str:
        factors = [self.factor()]
        while self.tokens and self.tokens[0] not in (*SIGNS, *"=+-)"):
            if self.tokens[0] == "/":
                self.next()
                above = _bare(factors[0]) if len(factors) == 1 else r"\,".join(factors)
                factors = [rf"\frac{{{above}}}{{{_bare(self.factor())}}}"]
            else:
                factors.append(self.factor())
        return r"\,".join(factors)

    def factor(self) -> str:
        token = self.next()
        if token == "(":
            parts = [self.sum()]
            while self.next() == ",":
                parts.append(self.sum())
            made = f"({', '.join(parts)})"
        elif token == "sqrt":
            self.next()
            made = rf"\sqrt{{{self.sum()}}}"
            self.next()
        else:
            made = _name(token)
        if self.tokens and self.tokens[0] == "^":
            self.next()
            made = rf"\hat{{{made}}}"
        if self.tokens and self.tokens[0][0] == "^":
            power = self.next()[1:]
            made += f"^{{{_name(power) if '_' in power else power}}}"
        return made


def _name(word: str) -> str:
    if re.fullmatch(r"[a-z]\d", word) and word not in GREEK:
        return f"{word[0]}_{word[1]}"
    if word in GREEK or len(word) == 1 or word[0].isdigit():
        return GREEK.get(word, word)
    if word.endswith(":"):
        return rf"\text{{{word} }}"
    return rf"\mathrm{{{word}}}".replace("_", r"\_")


def _bare(factor: str) -> str:
    """Without the brackets that a fraction makes superfluous."""
    inside = factor[1:-1]
    depth = lowest = 0
    for sign in inside:
        depth += (sign == "(") - (sign == ")")
        lowest = min(lowest, depth)
    return inside if factor.startswith("(") and factor.endswith(")") and lowest == 0 else factor


def aligned(block: str) -> str:
    """The lines of a block, one below the other."""
    lines = []
    for line in block.strip().splitlines():
        parts = re.split(r" {2,}", line.strip())
        words = "" if len(parts) == 1 or SIGN.search(parts[-1]) else parts.pop()
        formula = parts[0]
        for part in parts[1:]:
            follows = SIGN.match(part) or formula.endswith((",", ":"))
            formula += f" {part}" if follows else f", {part}"
        left, sign, right = SPLIT.split(formula, maxsplit=1)
        told = IN_SENTENCES.sub(lambda found: f"${tex(found[0])}$", words)
        note = rf" && \text{{{told}}}" if told else ""
        lines.append(f"{tex(left)} &{SIGNS.get(sign, sign)} {tex(right)}{note}")
    return r"\begin{aligned}" + lines[0] + "".join(map(_below, lines[1:])) + r"\end{aligned}"


def _below(line: str) -> str:
    """A line with the room above it that a fraction needs."""
    return rf"\\[{'.9em' if 'frac' in line else '.4em'}] {line}"


def typeset(page: str) -> str:
    """The HTML of a page, with an element of its own for every formula."""
    page = BLOCK.sub(_block, page)
    parts = CODE.split(page)
    # Of three parts the first is text, the second a tag or code, the third the tag's name.
    parts[::3] = [IN_SENTENCES.sub(_inline, part) for part in parts[::3]]
    del parts[2::3]
    return "".join(parts)


def _block(found: re.Match[str]) -> str:
    text = html.unescape(re.sub("<[^>]+>", "", found[1]))
    if not all(map(LINE.match, text.strip().splitlines())):
        return found[0]
    return f'<div class="formula">{html.escape(aligned(text))}</div>'


def _inline(found: re.Match[str]) -> str:
    return f'<span class="formula">{tex(found[0])}</span>'
