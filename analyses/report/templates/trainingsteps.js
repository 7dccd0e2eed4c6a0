// A slider redraws the squares of the atlas as they were at a step of training, and tells viewers the heads' patterns
// there (`interp:step`); at its end all are the model's own.
"use strict";
for (const root of document.querySelectorAll(".steps-of-training")) {
  const data = JSON.parse(root.querySelector("script").textContent), [rows, columns] = data.sides;
  const slider = root.querySelector("input"), said = root.querySelector("output"), own = new Map();
  const raw = new Blob([Uint8Array.from(atob(data.packed), sign => sign.charCodeAt(0))]).stream();
  const whole = new Response(raw.pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
  slider.addEventListener("input", async () => {
    const shares = new Uint8Array(await whole), step = +slider.value, last = step === data.steps.length;
    said.textContent = last ? "trained" : data.steps[step];
    slider.setAttribute("aria-valuetext", said.textContent);
    const detail = last ? null : { step, name: data.steps[step], count: data.steps.length, kept: data.patterns };
    document.dispatchEvent(new CustomEvent("interp:step", { detail }));
    data.heads.forEach((head, index) => {
      const svg = document.querySelector(`.atlas a[data-head="${head}"] svg`);
      if (!svg) return;
      if (!own.has(head)) own.set(head, [...svg.childNodes]);
      if (last) { svg.replaceChildren(...own.get(head)); return; }
      const start = (step * data.heads.length + index) * rows * columns, paths = data.shades.map(() => "");
      for (let cell = 0; cell < rows * columns; cell++) {
        const shade = data.shades.findLastIndex(([least]) => shares[start + cell] / 255 >= least);
        if (shade >= 0) paths[shade] += `M${cell % columns} ${Math.floor(cell / columns)}h1v1h-1z`;
      }
      svg.replaceChildren(...paths.map((d, shade) => {
        const path = document.createElementNS(svg.namespaceURI, "path");
        path.setAttribute("d", d);
        path.setAttribute("fill-opacity", data.shades[shade][1]);
        return path;
      }));
    });
  });
}
