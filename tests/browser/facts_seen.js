name => {
  // What stands in a head's cell, each fact whole or not at all.
  const cell = document.querySelector(`[data-head="${name}"]`), room = cell.querySelector(".words");
  return [..."bi"].map(tag => {
    const said = cell.querySelector(tag);
    if (!said || !said.checkVisibility()) return "";
    const box = said.getBoundingClientRect(), around = room.getBoundingClientRect();
    const inside = box.right <= around.right + 1 && box.bottom <= around.bottom + 1;
    return inside && said.scrollHeight <= said.clientHeight + 1 ? said.textContent : "";
  });
}
