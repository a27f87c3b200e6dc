// Typesets the formulas of a page: those of docs/formulas.py, and what pages have between dollars.
for (const place of document.querySelectorAll(".formula, .arithmatex")) {
  const text = place.textContent.trim().replace(/^\\[([]|\\[)\]]$/g, "");
  katex.render(text, place, {displayMode: place.tagName === "DIV", throwOnError: false});
}

// Opens the folded section that a link leads into.
const reveal = () => {
  const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = place && place.closest("details.fold");
  if (fold && !fold.open) { fold.open = true; place.scrollIntoView(); }
};
addEventListener("hashchange", reveal);
reveal();
