// Typesets the formulas of a page, which docs/formulas.py wrote as TeX into elements of their own.
for (const place of document.querySelectorAll(".formula")) {
  katex.render(place.textContent, place, {displayMode: place.tagName === "DIV"});
}
