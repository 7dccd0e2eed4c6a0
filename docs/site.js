// Tables that are wider than the screen scroll by keyboard too: the theme wraps them after the page has come.
addEventListener("load", () => {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) wrap.tabIndex = 0;
});
