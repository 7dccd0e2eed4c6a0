// Heads are pressed, and answers flip: every set that can be pressed was measured, so nothing here is computed.
(() => {
  for (const root of all(".flip-task")) {
    const { pairs, sets } = dataOf(root), buttons = all("[data-flip]", root), count = root.querySelector(".flip-count");
    const order = buttons.map(button => button.dataset.flip), pressed = new Set();
    const name = heads => order.filter(head => heads.has(head)).join("+");
    const cell = head => document.querySelector(`.atlas a[data-head="${head}"]`);

    const rows = pairs.map(([clean, corrupted, right, wrong]) => {
      const bar = svg("svg", { "aria-hidden": "true" }), text = make("span");
      bar.append(svg("rect", { width: "100%", height: "100%" }), svg("rect", { class: "right", height: "100%" }), svg("rect", { class: "wrong", height: "100%" }));
      const row = make("div", {}, make("span", { textContent: `${clean} …`, title: `The other prompt: ${corrupted}` }), make("span", {}, bar, text));
      root.querySelector(".flip-pairs").append(row);
      return { row, bar, text, right, wrong };
    });

    function draw() {
      const set = sets[name(pressed)];
      rows.forEach(({ row, bar, text, right, wrong }, index) => {
        const [, , , , before, other] = pairs[index], [p, q] = set ? set.answers[index] : [before, other];
        bar.children[1].setAttribute("width", `${100 * p}%`);
        bar.children[2].setAttribute("x", `${100 * p}%`);
        bar.children[2].setAttribute("width", `${100 * q}%`);
        text.textContent = `${right} ${percent(p)} · ${wrong} ${percent(q)}`;
        row.classList.toggle("flipped", Boolean(set) && (p > q) !== (before > other));
      });
      count.textContent = set
        ? `${order.filter(head => pressed.has(head)).join(", ")} changed: ${set.flips} of ${pairs.length} answers flip (95%: ${set.low} to ${set.high}).`
        : `Nothing changed: ${pairs.length} prompts as they are.`;
      for (const button of buttons) {
        const head = button.dataset.flip, next = new Set(pressed);
        if (!next.delete(head)) next.add(head);
        button.setAttribute("aria-pressed", pressed.has(head));
        button.disabled = next.size > 0 && !(name(next) in sets);
        if (!root.hidden) cell(head)?.classList.toggle("changed", pressed.has(head));
      }
    }

    function change(head) {
      const next = new Set(pressed);
      if (!next.delete(head)) next.add(head);
      if (!order.includes(head) || (next.size && !(name(next) in sets))) return;
      pressed.clear();
      for (const each of next) pressed.add(each);
      draw();
    }
    for (const button of buttons) button.addEventListener("click", () => change(button.dataset.flip));
    root.closest(".flip").addEventListener("interp:change", event => { if (!root.hidden) change(event.detail); });
    root.addEventListener("interp:seen", draw);
    change(order[0]);
  }

  for (const pick of all(".flip-pick")) {
    const tasks = all(".flip-task", pick.closest(".flip"));
    pick.addEventListener("change", () => {
      tasks.forEach((task, index) => { task.hidden = index !== pick.selectedIndex; });
      for (const cell of all(".atlas a.changed")) cell.classList.remove("changed");
      tasks[pick.selectedIndex].dispatchEvent(new CustomEvent("interp:seen"));
    });
  }
})();
