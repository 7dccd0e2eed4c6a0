async () => {
  // Milliseconds from each of 300 hovers to what is painted.
  const tokens = [...document.querySelectorAll(".token")], took = [];
  for (let at = 100; at < 400; at++) {
    await new Promise(requestAnimationFrame);
    const begun = performance.now();
    tokens[at].dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
    const heard = performance.now();
    took.push(await new Promise(done => requestAnimationFrame(() => {  // after the viewer's own
      document.body.getBoundingClientRect();  // styles and layout are worked out
      done(heard - begun + performance.now() - document.timeline.currentTime);
    })));
  }
  return took;
}
