// Maps: arrow keys go from cell to cell, the cell that is pointed at or has the focus is said in full, and what matches
// it in other maps is marked. A link that turns the viewer to a head brings the viewer into sight.
(() => {
  const cellsOf = where => all(".grid td > *", where);

  function say(grids, cell) {
    const says = grids.querySelector(".grids-says");
    says.textContent = cell?.querySelector(".clipped").textContent ?? "";
    for (const each of all(".marked", grids)) each.classList.remove("marked", "best");
    const best = new Map();
    for (const id of cell?.dataset.marks?.split(" ") ?? []) {
      const match = document.getElementById(id), map = match.closest(".grid");
      match.classList.add("marked");
      if (!best.has(map)) best.set(map, match.classList.add("best"));
    }
  }

  for (const grids of all(".grids")) {
    const cellOf = event => event.target.closest?.(".grid td > *");
    let held = all("a", grids).find(each => each.hash === (location.hash || grids.dataset.start)) ?? null;
    if (held) mark(held, true);
    if (held && !location.hash) {
      try { history.replaceState(null, "", held.hash); } catch { /* a frame without an address */ } // the viewer reads it
    }
    for (const event of ["pointerover", "focusin"]) grids.addEventListener(event, it => say(grids, cellOf(it) ?? held));
    for (const event of ["pointerleave", "focusout"]) grids.addEventListener(event, () => say(grids, held));
    for (const grid of all(".grid", grids)) {
      const cells = all("td > *", grid), first = cells.find(each => each === held) ?? cells.find(each => each.matches("a")) ?? cells[0];
      for (const each of cells) each.tabIndex = each === first ? 0 : -1;
    }
    say(grids, held);
    grids.querySelector(".grids-says").classList.add("live");
    grids.addEventListener("keydown", event => {
      const cell = cellOf(event), to = neighbour(cell, event.key);
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
      for (const each of cellsOf(document)) mark(each, each === cell);
      say(grids, cell);
      if (!match?.closest(".grid")) return;
      event.preventDefault(); // the match is marked, and the keyboard goes on from there
      if (event.detail === 0) match.focus();
    });
  }

  addEventListener("hashchange", () => {
    if (placeOf(location.hash.slice(1))) document.querySelector("section.viewer")?.scrollIntoView({ block: "nearest" });
  });
})();
