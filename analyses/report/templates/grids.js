// Maps: arrow keys go from cell to cell, the cell that is pointed at or has the focus is said in full, and what matches
// it in other maps is marked. A link that turns the viewer to a head brings the viewer into sight.
"use strict";
(() => {
  const cellsOf = where => [...where.querySelectorAll(".grid td > *")];

  function say(grids, cell) {
    const says = grids.querySelector(".grids-says");
    says.textContent = cell?.querySelector(".clipped").textContent ?? "";
    for (const each of grids.querySelectorAll(".marked")) each.classList.remove("marked", "best");
    const best = new Map();
    for (const id of cell?.dataset.marks?.split(" ") ?? []) {
      const match = document.getElementById(id), map = match.closest(".grid");
      match.classList.add("marked");
      if (!best.has(map)) best.set(map, match.classList.add("best"));
    }
  }

  for (const grids of document.querySelectorAll(".grids")) {
    const cellOf = event => event.target.closest?.(".grid td > *");
    let held = [...grids.querySelectorAll("a")].find(each => each.hash === (location.hash || grids.dataset.start)) ?? null;
    held?.setAttribute("aria-current", "true");
    if (held && !location.hash) {
      try { history.replaceState(null, "", held.hash); } catch { /* a frame without an address */ } // the viewer reads it
    }
    for (const event of ["pointerover", "focusin"]) grids.addEventListener(event, it => say(grids, cellOf(it) ?? held));
    for (const event of ["pointerleave", "focusout"]) grids.addEventListener(event, () => say(grids, held));
    for (const grid of grids.querySelectorAll(".grid")) {
      const all = cellsOf(grid);
      for (const each of all) each.tabIndex = -1;
      const first = grid.querySelector("[aria-current]") ?? all.find(each => each.matches("a")) ?? all[0];
      if (first) first.tabIndex = 0;
    }
    say(grids, held);
    grids.querySelector(".grids-says").classList.add("live");
    grids.addEventListener("keydown", event => {
      const cell = cellOf(event), row = cell?.closest("tr"), place = cell?.closest("td").cellIndex;
      const to = row && {
        ArrowLeft: row.cells[place - 1], ArrowRight: row.cells[place + 1],
        ArrowUp: row.previousElementSibling?.cells[place], ArrowDown: row.nextElementSibling?.cells[place],
      }[event.key]?.querySelector("td > *");
      if (!to) return;
      event.preventDefault();
      cell.tabIndex = -1;
      to.tabIndex = 0;
      to.focus();
    });
    grids.addEventListener("click", event => {
      const cell = cellOf(event), match = cell?.matches("a") && document.getElementById(cell.hash.slice(1));
      if (!cell?.matches("a")) return;
      held = cell;
      for (const each of cellsOf(document)) each.removeAttribute("aria-current");
      cell.setAttribute("aria-current", "true");
      say(grids, cell);
      if (!match?.closest(".grid")) return;
      event.preventDefault(); // the match is marked, and the keyboard goes on from there
      if (event.detail === 0) match.focus();
    });
  }

  addEventListener("hashchange", () => {
    if (/^#(\w+\.)?L\d+\.H\d+/.test(location.hash)) document.querySelector("section.viewer")?.scrollIntoView({ block: "nearest" });
  });
})();
