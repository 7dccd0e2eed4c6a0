// A slider redraws the squares of the atlas as they were at a step of training, and tells viewers the heads' patterns
// there (`interp:step`); at its end all are the model's own.
for (const root of all(".steps-of-training")) {
  const data = dataOf(root), [rows, columns] = data.sides, whole = unpacked(data.packed);
  const slider = root.querySelector("input"), said = root.querySelector("output"), own = new Map();
  slider.addEventListener("input", async () => {
    const shares = await whole, step = +slider.value, last = step === data.steps.length;
    said.textContent = last ? "trained" : data.steps[step];
    slider.setAttribute("aria-valuetext", said.textContent);
    const detail = last ? null : { step, name: data.steps[step], count: data.steps.length, kept: data.patterns };
    document.dispatchEvent(new CustomEvent("interp:step", { detail }));
    data.heads.forEach((head, index) => {
      const square = document.querySelector(`.atlas a[data-head="${head}"] svg`);
      if (!square) return;
      if (!own.has(head)) own.set(head, [...square.childNodes]);
      if (last) { square.replaceChildren(...own.get(head)); return; }
      const start = (step * data.heads.length + index) * rows * columns, paths = data.shades.map(() => "");
      for (let cell = 0; cell < rows * columns; cell++) {
        const shade = data.shades.findLastIndex(([least]) => shares[start + cell] / 255 >= least);
        if (shade >= 0) paths[shade] += `M${cell % columns} ${Math.floor(cell / columns)}h1v1h-1z`;
      }
      square.replaceChildren(...paths.map((d, shade) => svg("path", { d, "fill-opacity": data.shades[shade][1] })));
    });
  });
}
