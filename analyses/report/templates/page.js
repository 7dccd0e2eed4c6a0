// What answers to the hand on every page: heads by their address and by arrow keys, tables that sort and filter.
(() => {
  // Heads and their facts by their addresses. The event `interp:head` tells which.
  const cards = all(".cards > .card"), cells = all(".atlas a[data-head]"), sheet = document.querySelector(".cards");
  const at = new Map(cells.map(cell => [cell.dataset.head, cell]));

  function show(id) {
    const [head] = id.split("/"), { before, layer, head: number } = placeOf(id);
    for (const card of cards) {
      card.classList.toggle("shown", card.id === head);
      if (card.id !== head) continue;
      const facts = all(".fact", card), fact = facts.find(each => each.id === id) ?? facts[0];
      for (const each of facts) each.classList.toggle("shown", each === fact);
      for (const link of all("[data-fact]", card)) mark(link, link.dataset.fact === fact.id);
    }
    for (const cell of cells) {
      cell.tabIndex = cell.dataset.head === head ? 0 : -1;
      mark(cell, cell.dataset.head === head);
    }
    const cross = before === "cross";
    const detail = { stack: cross ? "decoder" : before || null, attention: cross ? "cross" : "self", layer, head: number };
    document.dispatchEvent(new CustomEvent("interp:head", { detail }));
  }

  // The viewer turned to another head by itself: its card follows.
  document.addEventListener("interp:turned", ({ detail: { stack, attention, layer, head } }) => {
    const name = `L${layer}.H${head}`, id = at.has(name) ? name : `${attention === "cross" ? "cross" : stack}.${name}`;
    if (!at.has(id)) return;
    history.replaceState(null, "", "#" + id);
    show(id);
  });

  const asked = () => decodeURIComponent(location.hash.slice(1));
  const isHead = id => placeOf(id) && (at.has(id) || document.getElementById(id)?.closest(".cards"));
  const flip = document.querySelector("details.flip");
  for (const atlas of all(".atlas")) {
    atlas.addEventListener("keydown", event => {
      const to = neighbour(event.target.closest("a[data-head]"), event.key);
      if (!to) return;
      event.preventDefault();
      history.replaceState(null, "", "#" + to.dataset.head);
      show(to.dataset.head);
      to.focus();
    });
    atlas.addEventListener("click", event => {
      const cell = event.target.closest("a[data-head]");
      if (!cell || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault(); // the card stands beside the atlas: no jump
      history.pushState(null, "", "#" + cell.dataset.head);
      show(cell.dataset.head);
      cell.focus(); // not every browser gives a link the focus that is touched
      if (flip?.open) flip.dispatchEvent(new CustomEvent("interp:change", { detail: cell.dataset.head }));
      else sheet.classList.add("open");
    });
  }
  sheet?.querySelector(".sheet-close")?.addEventListener("click", () => sheet.classList.remove("open"));
  sheet?.addEventListener("click", event => {
    const link = event.target.closest("a[data-fact]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    history.pushState(null, "", "#" + link.dataset.fact);
    show(link.dataset.fact);
  });
  function reveal() {
    const { top } = sheet?.getBoundingClientRect() ?? { top: 0 };
    if (top < 0 || top > innerHeight) document.querySelector(".heads")?.scrollIntoView();
  }
  addEventListener("load", () => { if (isHead(asked())) reveal(); }); // after the browser's own jump to the fact
  function follow() {
    const id = asked();
    if (isHead(id)) {
      show(id);
      sheet?.classList.add("open");
      reveal();
    } else if (id) {
      const target = document.getElementById(id);
      for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
      target?.scrollIntoView();
    }
  }
  addEventListener("hashchange", follow);
  addEventListener("popstate", follow);

  // Tables: a click on a column's name sorts the rows of each group; a dash is undefined, and last either way.
  const natural = new Intl.Collator("en", { numeric: true });
  const numeral = /^[<>≤≥]?\s*([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)/i;
  const said = (row, column) => (row.cells[column]?.textContent ?? "").trim();
  const value = text => {
    const found = numeral.exec(text.replaceAll("\u202f", "").replaceAll("−", "-"));
    return found ? +found[1] : NaN;
  };
  const rowsOf = body => [...body.rows].filter(row => !row.querySelector("th[scope=rowgroup]"));

  function sort(table, column, down) {
    const texts = all("tbody", table).flatMap(rowsOf).map(row => said(row, column)).filter(text => text && text !== "–");
    const numbers = texts.every(text => !isNaN(value(text)));
    const compare = (a, b) => numbers ? value(a) - value(b) : natural.compare(a, b);
    for (const body of table.tBodies) {
      const rows = rowsOf(body).map(row => [said(row, column), row]);
      const told = rows.filter(([text]) => text && text !== "–"), untold = rows.filter(([text]) => !text || text === "–");
      told.sort(([a], [b]) => down ? compare(b, a) : compare(a, b));
      body.append(...[...told, ...untold].map(([, row]) => row));
    }
  }

  for (const table of all("main table:has(thead)")) {
    const rows = [...table.tBodies].flatMap(rowsOf);
    const heads = all("thead th", table);
    if (rows.length < 2) continue;
    for (const th of heads) {
      const button = make("button", { type: "button" }, ...th.childNodes);
      th.append(button);
      button.addEventListener("click", () => {
        // numbers are asked for largest first, names from A
        const before = th.getAttribute("aria-sort"), first = th.classList.contains("number") ? "descending" : "ascending";
        const now = !before ? first : before === "ascending" ? "descending" : "ascending";
        for (const each of heads) each.removeAttribute("aria-sort");
        th.setAttribute("aria-sort", now);
        sort(table, th.cellIndex, now === "descending");
      });
    }
    if (rows.length <= 10) continue;
    const region = table.closest(".wide"), count = make("span", { role: "status" });
    const label = `Filter rows: ${region?.getAttribute("aria-label") ?? ""}`;
    const field = make("input", { type: "search", placeholder: "Filter rows", label });
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
      const left = rows.filter(row => !row.hidden).length;
      count.textContent = words.length ? `${left} of ${rows.length} rows` : "";
    });
    (region ?? table).before(make("div", { className: "filter" }, field, count));
  }

  // Regions are stopped at by the tab key only while they have something to scroll.
  const reach = () => {
    for (const region of all(".wide[role=group]")) {
      const scrolls = region.scrollWidth > region.clientWidth || region.scrollHeight > region.clientHeight + 1;
      if (scrolls) region.tabIndex = 0; else region.removeAttribute("tabindex");
    }
  };
  addEventListener("resize", reach);
  addEventListener("toggle", reach, true);
  reach();

  const contents = document.querySelector("nav.contents details");
  contents?.addEventListener("click", event => { if (event.target.closest("a")) contents.open = false; });
  contents?.addEventListener("keydown", event => {
    if (event.key !== "Escape") return;
    contents.open = false;
    contents.querySelector("summary").focus();
  });

  // Paper has what is worth it of what is folded.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = all("main details.printed:not([open])");
    for (const each of folded) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of folded) each.open = false; });

  // Without scripts all cards stand below one another; with them one is shown, the first if none is asked for.
  document.documentElement.classList.add("scripted");
  addEventListener("DOMContentLoaded", () => {
    const first = cards[0]?.id ?? cells[0]?.dataset.head;
    if (isHead(asked())) follow();
    else {
      if (first) show(first);
      if (asked()) follow();
    }
  });
})();
