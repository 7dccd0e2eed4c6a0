// What several scripts of a page use, and a legend's buttons. All scripts of a page are one.
"use strict";
const all = (what, where = document) => [...where.querySelectorAll(what)];
const make = (tag, { role, label, ...rest } = {}, ...inside) => {
  const made = Object.assign(document.createElement(tag), rest);
  if (role) made.setAttribute("role", role);
  if (label) made.setAttribute("aria-label", label);
  made.append(...inside);
  return made;
};
const svg = (tag, attributes = {}) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};
const mark = (element, chosen) => { if (chosen) element.setAttribute("aria-current", "true"); else element.removeAttribute("aria-current"); };
const percent = share => share > 0 && share < 0.005 ? "<1%" : `${Math.round(100 * share)}%`;
const dataOf = root => JSON.parse(root.querySelector("script[type='application/json']").textContent);

// A head's address, as L3.H4, cross.L3.H4 or L3.H4/induction, in parts; null of any other.
const placeOf = id => {
  const found = /^(?:(\w+)\.)?L(\d+)\.H(\d+)(?:\/|$)/.exec(id);
  return found && { before: found[1] || "", layer: +found[2], head: +found[3] };
};

// What a key leads to from a cell of a table.
const neighbour = (cell, key) => {
  const row = cell?.closest("tr"), at = cell?.closest("td").cellIndex;
  return row && {
    ArrowLeft: row.cells[at - 1], ArrowRight: row.cells[at + 1], Home: row.cells[1], End: [...row.cells].at(-1),
    ArrowUp: row.previousElementSibling?.cells[at], ArrowDown: row.nextElementSibling?.cells[at],
  }[key]?.querySelector("td > *");
};

// Bytes that came deflated, as base64.
async function unpacked(packed) {
  const raw = new Blob([Uint8Array.from(atob(packed), sign => sign.charCodeAt(0))]).stream();
  return new Uint8Array(await new Response(raw.pipeThrough(new DecompressionStream("deflate"))).arrayBuffer());
}

// A legend's buttons leave only heads of one behaviour, or only those that are needed; pressed again, all come back.
document.addEventListener("click", ({ target }) => {
  const only = target.closest("[data-only]"), room = only?.closest(".heads, .viewer"), on = only?.getAttribute("aria-pressed") !== "true";
  if (!room) return;
  for (const each of all("[data-only]", room)) each.setAttribute("aria-pressed", each === only && on);
  for (const head of all(".atlas a, .viewer-heads .head", room)) head.classList.toggle("absent-here", on && !head.classList.contains(only.dataset.only));
});
