height => {
  // The words that are seen before anything is touched, each with where it stands.
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const kinds = [["mark", ".atlas th"], ["cell", ".atlas td"], ["text", ".look, .passage, .bars em, .sentences, .token"], ["name", "h1"], ["said", "*"]];
  const how = { visibilityProperty: true, opacityProperty: true };
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const around = node.parentElement, kind = kinds.find(([, where]) => around.closest(where))[0];
    if (!around.checkVisibility(how) || around.closest(".hidden, .below > h2, script, option, noscript")) continue;
    for (const word of node.data.matchAll(/\S+(\u202f\d+)*/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const box = range.getBoundingClientRect();
      const inside = box.height && box.top < height && box.bottom > 0 && box.right > 0;
      if (inside && /[\p{L}\p{N}]/u.test(word[0])) found.push([kind, word[0]]);
    }
  }
  return found;
}
