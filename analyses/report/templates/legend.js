// A legend's buttons leave only heads of one behaviour, or only those that are needed; pressed again, all come back.
"use strict";
document.addEventListener("click", ({ target }) => {
  const only = target.closest("[data-only]"), room = only?.closest(".heads, .viewer"), on = only?.getAttribute("aria-pressed") !== "true";
  for (const each of room?.querySelectorAll("[data-only]") ?? []) each.setAttribute("aria-pressed", each === only && on);
  for (const head of room?.querySelectorAll(".atlas a, .viewer-heads .head") ?? []) head.classList.toggle("absent-here", on && !head.classList.contains(only.dataset.only));
});
