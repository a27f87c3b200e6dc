// Typesets the formulas of a page: those of docs/formulas.py, and what pages have between dollars.
for (const place of document.querySelectorAll(".formula, .arithmatex")) {
  const text = place.textContent.trim().replace(/^\\[([]|\\[)\]]$/g, "");
  katex.render(text, place, {displayMode: place.tagName === "DIV"});
}
