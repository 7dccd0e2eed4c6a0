// A claim is passed on: its link is copied, or it is saved as the picture whose marks came with it (`claim_pictures`).
(() => {
  const FONT = "'DejaVu Sans', Verdana, sans-serif";

  function drawn(marks) {
    const [, , , width, height] = marks[0], canvas = make("canvas", { width, height });
    const pen = canvas.getContext("2d");
    for (const [kind, x, y, ...rest] of marks) {
      pen.fillStyle = kind === "text" ? rest[2] : rest.at(-1);
      if (kind === "box") pen.fillRect(x, y, ...rest.slice(0, 2));
      if (kind === "dot") { pen.beginPath(); pen.arc(x, y, rest[0], 0, 2 * Math.PI); pen.fill(); }
      if (kind !== "text") continue;
      pen.font = `${rest[1] ? "bold " : ""}${rest[0]}px ${FONT}`;
      pen.fillText(rest[3], x, y, width - x);
    }
    return canvas.toDataURL("image/png");
  }

  document.querySelector(".cards")?.addEventListener("click", async ({ target }) => {
    const button = target.closest(".pass-on button"), id = button?.closest(".fact").id;
    if (!button) return;
    if (button.dataset.picture) {
      const marks = JSON.parse(button.dataset.picture);
      marks.at(-1)[6] = document.querySelector("#cite ~ * code")?.textContent ?? "";
      make("a", { href: drawn(marks), download: `${id.replace("/", "-")}.png` }).click();
    } else {
      const name = button.textContent;
      await navigator.clipboard.writeText(`${location.href.split("#")[0]}#${id}`);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = name; }, 1500);
    }
  });
})();
