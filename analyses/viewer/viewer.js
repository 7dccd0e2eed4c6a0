// Where does each token look? One section.viewer a time: point at a token or into the matrix, click to hold, choose a head.
(() => {
  const SAID = 0.1, MOST = 3; // of what a head looks at, what is said in words
  const LINED = 0.05; // and what has a line
  const PRONOUN = /^(he|him|his|himself|she|her|hers|herself)$/i;
  const plain = token => token.trim() || token.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "␣";
  const listed = words => words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
  const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] };

  // Shares, in 255ths, as a picture of one pixel each, in the ink of the place where it stands.
  function draw(canvas, rows, columns, level) {
    Object.assign(canvas, { width: columns, height: rows });
    canvas.style.imageRendering = rows > 300 ? "auto" : "pixelated"; // of many, none is dropped where they are shown smaller
    const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
    for (let each = 0; each < rows * columns; each++) image.data[4 * each + 3] = level(each);
    context.putImageData(image, 0, 0);
    context.globalCompositeOperation = "source-in";
    context.fillStyle = getComputedStyle(canvas).color;
    context.fillRect(0, 0, columns, rows);
  }

  // `pinned`: the place at which a second viewer stays, beside the one that it was pinned from.
  function view(root, pinned = null) {
    const data = dataOf(root);
    if (pinned) data.linked = data.heads = false;
    const called = new Map(data.called.map(([s, a, l, h, words, behaviour, asks, needed]) => [`${s} ${a} ${l}.${h}`, { words, behaviour, asks, needed }]));
    const box = name => root.querySelector(`.viewer-${name}`);
    const texts = box("texts"), says = box("says"), heads = box("heads"), kinds = box("kinds"), turn = box("turn"), next = box("next"), pin = box("pin"), square = box("square");
    const wires = svg("svg");
    // `side`: which tokens are picked, those that look ("queries") or those that are looked at ("keys")
    let passage = 0, kind = 0, layer = 0, head = 0, side = "queries", at = 0, held = new Set(), wanted = 0, untouched = true;
    let pointed = null, drawn = null; // the matrix's cell that is pointed at, and the head that it shows
    let patterns = new Map(), panels = {}, painted = {}, cells = new Map();
    let past = pinned?.past ?? null; // the step of training at which the first passage is seen, where the page has a slider

    const kindsNow = () => data.passages[passage].attentions;
    const now = () => kindsNow()[kind];
    const crossing = () => now().keys !== null;
    const tokens = which => which === "keys" && crossing() ? now().keys : now().queries;
    const other = () => side === "queries" ? "keys" : "queries";
    const shown = which => crossing() ? which : "queries"; // the panel in which tokens of that side stand
    const titled = each => each.attention === "cross" ? "cross-attention" : each.stack;
    const named = (l, h) => `${data.several ? `${titled(now())} ` : ""}L${l}.H${h}`;
    const about = (l, h) => called.get(`${now().stack} ${now().attention} ${l}.${h}`);
    const stage = () => passage ? null : past;
    const isKept = (l, h) => `${l}.${h}` in (stage() ?? now()).kept;
    const kindOf = ({ stack, attention }) => kindsNow().findIndex(each => each.attention === attention && (stack ?? each.stack) === each.stack);
    const following = () => now().stack === kindsNow().at(-1).stack && !stage() ? data.passages[passage].following : [];

    // What is packed, once it is inflated; null until then, and for what was left out.
    function inflated(packed) {
      if (!packed || patterns.has(packed)) return patterns.get(packed) ?? null;
      patterns.set(packed, null);
      unpacked(packed).then(found => { patterns.set(packed, found); soon(); });
      return null;
    }

    function patternNow() {
      const { step = 0, count = 1, kept } = stage() ?? now(), whole = inflated(kept[`${layer}.${head}`]);
      return whole?.subarray(step * whole.length / count, (step + 1) * whole.length / count) ?? null;
    }

    function share(pattern, query, key) {
      if (now().causal && key > query) return 0;
      return pattern[(now().causal ? query * (query + 1) / 2 : query * tokens("keys").length) + key] / 255;
    }

    const inOrder = () => [...held].sort((a, b) => a - b);
    const picks = () => pointed ? [pointed[side]] : held.size ? inOrder() : [at];

    // Of each token of the other side: what the picked ones give it, on average, or what it gives to all of them.
    function shares(pattern) {
      const chosen = picks(), found = new Float32Array(tokens(other()).length);
      for (const pick of chosen) {
        for (let each = 0; each < found.length; each++) {
          found[each] += side === "queries" ? share(pattern, pick, each) / chosen.length : share(pattern, each, pick);
        }
      }
      return found;
    }

    // The word that looks hardest at another one: what a head does is seen there first. A head of a tag or a relation is
    // seen at a word of that kind, one of coreference right before a pronoun, where it has to be chosen, or at one. Else
    // the token before the last.
    function telling(pattern) {
      const words = tokens("queries").map(each => /\p{L}/u.test(each) && !/^(<.*>|\[.*\])$/.test(each));
      const word = each => words[each], before = each => pronoun(each + 1);
      const fact = about(layer, head), order = fact?.words === "antecedent" ? [pronoun, before] : [before, pronoun];
      const of = now() === kindsNow()[0] ? data.passages[passage].asking[fact?.asks] ?? [] : [];
      const asked = [each => of.includes(each), ...fact?.behaviour === "coreference" ? order : [], word];
      return asked.map(asks => hardest(pattern, asks, word)).find(each => each !== null) ?? at;
    }

    const pronoun = each => PRONOUN.test((tokens("queries")[each] ?? "").trim());

    function hardest(pattern, asks, word) {
      const names = tokens("queries");
      let best = 0.1, found = null;
      for (let query = 0; query < names.length; query++) {
        for (let key = 0; key < names.length; key++) {
          const level = query !== key && asks(query) && word(key) ? share(pattern, query, key) : 0;
          if (level >= best) { best = level; found = query; }
        }
      }
      return found;
    }

    const soon = () => { wanted ||= requestAnimationFrame(() => { wanted = 0; paint(); }); };

    function paint() {
      const pattern = patternNow();
      if (pattern && untouched && !held.size && side === "queries" && !crossing()) { at = telling(pattern); reach(); }
      if (pattern) untouched = false;
      const found = pattern && shares(pattern), panel = shown(other());
      for (const which of Object.keys(panels)) {
        const chosen = new Set(which === shown(side) ? picks() : []);
        if (pointed && which === panel) chosen.add(pointed[other()]);
        panels[which].forEach((button, each) => {
          const level = which === panel && found ? Math.round(found[each] * 100) : 0, mark = chosen.has(each);
          if (painted[which][each] === `${level} ${mark}`) return;
          painted[which][each] = `${level} ${mark}`;
          button.style.setProperty("--share", level / 100);
          button.classList.toggle("looked-at", level >= SAID * 100);
          button.classList.toggle("picked", mark);
        });
      }
      turn.setAttribute("aria-pressed", side === "keys");
      if (root.classList.contains("lined")) wire(pattern, panel);
      if (square) picture(pattern);
      say(found, pattern);
    }

    // Lines from each picked token to those of the other side that share at least 5% with it.
    function wire(pattern, panel) {
      const area = texts.getBoundingClientRect(), lines = [];
      const top = button => {
        const { left, top, width } = button.getBoundingClientRect();
        return [left + width / 2 - area.left + texts.scrollLeft, top - area.top + texts.scrollTop];
      };
      for (const pick of pattern ? picks() : []) {
        const [x, y] = top(panels[shown(side)][pick]);
        panels[panel].forEach((button, each) => {
          const level = side === "queries" ? share(pattern, pick, each) : share(pattern, each, pick);
          if (level < LINED || button === panels[shown(side)][pick]) return;
          const [x2, y2] = top(button), lift = Math.min(y, y2) - Math.min(40, 10 + Math.abs(x - x2) / 8);
          const d = `M${x} ${y}C${x} ${lift} ${x2} ${lift} ${x2} ${y2}`;
          lines.push(svg("path", { d, "stroke-width": 1 + 4 * level, "stroke-opacity": 0.3 + 0.7 * level }));
        });
      }
      wires.setAttribute("height", texts.scrollHeight);
      wires.replaceChildren(...lines);
    }

    // Two viewers side by side point at the same tokens, as long as they show the same ones.
    const mate = () => root.closest(".viewer-pair") && [...root.parentElement.children].find(each => each !== root);
    const picked = () => ({ passage, crossing: crossing(), side, at, pointed, held: inOrder() });
    const tellPicks = each => each?.dispatchEvent(new CustomEvent("interp:picked", { detail: picked() }));
    const acted = () => { soon(); tellPicks(mate()); };
    root.addEventListener("interp:picked", ({ detail }) => {
      if (detail.crossing !== crossing() || JSON.stringify(detail) === JSON.stringify(picked())) return;
      if (detail.passage !== passage) { passage = detail.passage; begin(); }
      ({ side, at, pointed } = detail);
      held = new Set(detail.held);
      untouched = false;
      reach();
      soon();
    });
    pin.addEventListener("click", () => {
      if (pinned) { mate().querySelector(".viewer-pin").click(); return; }
      if (mate()) root.parentElement.replaceWith(root);
      else {
        const pair = make("div", { className: "viewer-pair" }), twin = root.cloneNode(true);
        twin.querySelector("label:has(.viewer-pick)")?.remove();
        twin.querySelector(".viewer-texts").replaceChildren();
        root.replaceWith(pair);
        pair.append(root, twin);
        twin.querySelector(".viewer-pin").textContent = "Unpin";
        view(twin, { kind, layer, head, passage, past });
        tellPicks(twin);
      }
      pin.textContent = mate() ? "Unpin" : "Pin beside";
      write(); // the matrix has other room for labels
      soon();
    });

    // Every head small, and the chosen one large: as small where its pattern was left out.
    function picture(pattern) {
      const full = ["queries", "keys"].map(which => tokens(which).length), [rows, columns] = full;
      const small = full.map(n => Math.min(n, data.side)), pictures = inflated(now().pictures), name = `${layer}.${head}`;
      const part = (l, h) => each => pictures?.[(l * now().heads + +h) * small[0] * small[1] + each];
      if (drawn === null && (pictures || !now().pictures)) {
        for (const [place, cell] of cells) draw(cell.firstChild, ...small, part(...place.split(".")));
        drawn = "";
      }
      if (drawn !== null && drawn !== name && (pattern || !isKept(layer, head))) {
        const level = each => 255 * share(pattern, Math.floor(each / columns), each % columns);
        draw(square.firstElementChild, ...pattern ? [...full, level] : [...small, part(layer, head)]);
        drawn = name;
      }
      const line = side === "queries" ? each => `M0 ${each}h${columns}v1H0z` : each => `M${each} 0v${rows}h1V0z`;
      const cell = pointed ? `M${pointed.keys} ${pointed.queries}h1v1h-1z` : "";
      square.querySelector("svg").setAttribute("viewBox", `0 0 ${columns} ${rows}`);
      square.querySelector("path").setAttribute("d", picks().map(line).join("") + cell);
    }

    function say(found, pattern) {
      const fact = about(layer, head), begins = named(layer, head);
      const name = `${begins[0].toUpperCase()}${begins.slice(1)}${fact ? ` (${fact.words})` : ""}${stage() ? ` at step ${stage().name}` : ""}`;
      root.dataset.painted = pattern ? `${named(layer, head)} ${side} ${picks().join("+")}` : "";
      if (!pattern) { says.textContent = isKept(layer, head) ? "" : `${name} was left out, to keep this page small.`; return; }
      const quoted = each => `“${plain(each)}”`;
      if (pointed) {
        const level = share(pattern, pointed.queries, pointed.keys), part = level ? percent(level) : "less than 1%";
        const [looks, seen] = ["queries", "keys"].map(which => quoted(tokens(which)[pointed[which]]));
        says.textContent = `${name}: ${looks} gives ${part} to ${!crossing() && pointed.queries === pointed.keys ? "itself" : seen}.`;
        return;
      }
      const text = tokens(side);
      const chosen = listed(picks().map(pick => quoted(text[pick])));
      const best = [...found.keys()].filter(each => found[each] >= SAID).sort((a, b) => found[b] - found[a]).slice(0, MOST);
      const several = picks().length > 1, itself = each => !crossing() && !several && each === picks()[0];
      const told = listed(best.map(each => `${itself(each) ? "itself" : quoted(tokens(other())[each])} (${percent(found[each])})`));
      const [pick] = picks(), chooses = fact?.behaviour === "coreference" && !several && pronoun(pick + 1);
      const look = several ? "together look" : chooses ? `before ${quoted(text[pick + 1])} looks` : "looks";
      const verb = side === "queries" ? `${look} at` : `${several ? "together are" : "is"} looked at by`;
      says.textContent = `${name}: ${chosen} ${verb} ${told || `no token with ${percent(SAID)} or more`}.`;
    }

    function write() {
      panels = {};
      texts.replaceChildren();
      for (const which of crossing() ? ["queries", "keys"] : ["queries"]) {
        const line = make("div", { className: "viewer-text", role: "group", label: caption(which) });
        panels[which] = tokens(which).map((token, each) => {
          const button = make("button", { type: "button", className: token.trim() ? "token" : "token soft", dir: "auto" }, plain(token));
          button.dataset.at = each;
          if (/^\s/.test(token) && each) line.append(" ");
          line.append(make("span", { className: "word" }, button, ...forecast(which, each)));
          if (token.includes("\n")) line.append(make("br"));
          return button;
        });
        painted[which] = [];
        line.dataset.side = which;
        texts.append(crossing() ? make("div", {}, make("p", { className: "soft", textContent: caption(which) }), line) : line);
      }
      texts.classList.toggle("beside", crossing());
      texts.append(wires);
      if (square) {
        const room = (box("matrix").clientWidth - 80) / 12; // labels that do not touch
        for (const [name, which] of [["rows", "queries"], ["columns", "keys"]]) {
          const labels = tokens(which).length > room ? [] : tokens(which);
          box(name).replaceChildren(...labels.map(token => make("span", { textContent: plain(token), dir: "auto" })));
        }
        square.setAttribute("aria-label", `Attention: ${now().keys ? "target looks at source" : "tokens look at tokens"}`);
      }
      reach();
    }

    // The most probable tokens after one, a line each.
    function forecast(which, each) {
      if (which === "keys" || !root.classList.contains("predicting") || !following()[each]) return [];
      const comes = token => token === tokens(which)[each + 1] ? "comes" : "";
      const line = ([token, share]) => make("span", { className: comes(token) }, `${share || "<1"}% ${plain(token)}`);
      return [make("span", { className: "next" }, ...following()[each].map(line))];
    }

    const caption = which => !crossing() ? "Text, token by token" : which === "queries" ? "Target: looks" : "Source: looked at";

    // One token of each text is reached by the tab key, the others by arrows.
    function reach() {
      for (const [which, buttons] of Object.entries(panels)) {
        const own = which === shown(side) ? at : Math.min(at, buttons.length - 1);
        buttons.forEach((button, each) => { button.tabIndex = each === own ? 0 : -1; });
      }
    }

    function grid() {
      kinds.replaceChildren(...kindsNow().length < 2 ? [] : kindsNow().map((each, number) => make("button", {
        ...{ type: "button", textContent: titled(each), ariaPressed: number === kind },
        onclick: () => { turnTo(number, layer, head); kinds.children[number].focus(); },
      })));
      heads.replaceChildren();
      cells = new Map();
      drawn = null;
      if (!data.heads) return;
      heads.style.setProperty("--heads", now().heads);
      const axis = said => make("span", { className: "soft axis", textContent: said });
      heads.append(axis("Layer ↑"));
      for (let l = now().layers - 1; l >= 0; l--) {
        heads.append(make("span", { className: "soft", textContent: `L${l}` }));
        for (let h = 0; h < now().heads; h++) {
          const fact = about(l, h), words = fact ? `: ${fact.words}` : isKept(l, h) ? "" : ": left out", label = named(l, h) + words;
          const className = `head ${fact ? `called ${fact.needed ? "needed" : "looks"} ${fact.behaviour}` : ""}`;
          const cell = make("button", { type: "button", label, title: label, className }, make("canvas"));
          if (fact) cell.append(make("span", {}, fact.words));
          cell.classList.toggle("absent", !isKept(l, h));
          cell.dataset.place = `${l}.${h}`;
          cells.set(`${l}.${h}`, cell);
          heads.append(cell);
        }
      }
      const numbers = [...Array(now().heads).keys()].map(h => make("span", { className: "soft", textContent: `H${h}` }));
      heads.append(make("span"), ...numbers, axis("Head →"));
    }

    function choose() {
      for (const [place, cell] of cells) {
        const own = place === `${layer}.${head}`;
        cell.tabIndex = own ? 0 : -1;
        cell.setAttribute("aria-pressed", own);
      }
      const fact = about(layer, head);
      for (const each of ["position", "part-of-speech", "coreference", "own"]) root.classList.toggle(each, fact?.behaviour === each);
      box("head").textContent = (data.heads && !data.several ? "Head " : "") + named(layer, head) + (fact ? ` · ${fact.words}` : "");
    }

    function aim(newLayer, newHead) {
      layer = Math.min(newLayer, now().layers - 1);
      head = Math.min(newHead, now().heads - 1);
    }

    // Looks at a head, of whichever kind of attention; texts are written anew where that has others.
    function turnTo(newKind, newLayer, newHead) {
      const rewrite = newKind !== kind || !texts.children.length;
      kind = newKind;
      aim(newLayer, newHead);
      if (rewrite) begin();
      else choose();
      link();
      soon();
    }

    function begin() {
      held.clear();
      pointed = null;
      if (crossing() || "keys" in panels) side = "queries"; // of two texts, or after them
      at = Math.max(0, tokens(side).length - 2); // the last ones have most to look at, and end in a full stop
      untouched = true;
      write();
      grid();
      turn.hidden = crossing();
      next.hidden = !following().length;
      choose();
    }

    function flip() {
      if (crossing()) return;
      side = other();
      link();
      acted();
    }

    // What is seen, as an address: #L2.H5, #cross.L2.H5/12+14/to/p1.
    function link() {
      if (!data.linked) return;
      const parts = [`${data.several ? `${now().attention === "cross" ? "cross" : now().stack}.` : ""}L${layer}.H${head}`];
      if (held.size) parts.push(inOrder().join("+"));
      if (side === "keys") parts.push("to");
      if (passage) parts.push(`p${passage}`);
      try { history.replaceState(null, "", `#${parts.join("/")}`); } catch { /* a frame without an address */ }
    }

    function follow(address) {
      const [name, ...rest] = address.split("/"), found = placeOf(name);
      const number = +(rest.map(part => /^p(\d+)$/.exec(part)).find(Boolean)?.[1] ?? 0), before = passage;
      if (!found || number >= data.passages.length) return false;
      passage = number;
      const own = each => (each.attention === "cross" ? "cross" : each.stack) === found.before || !found.before && !data.several;
      const which = kindsNow().findIndex(own);
      if (which < 0) { passage = before; return false; }
      kind = which;
      aim(found.layer, found.head);
      side = rest.includes("to") ? "keys" : "queries";
      begin();
      const tokensAsked = rest.find(part => /^\d+(\+\d+)*$/.test(part))?.split("+").map(Number) ?? [];
      held = new Set(tokensAsked.filter(each => each < tokens(side).length));
      if (held.size) at = picks()[0];
      if (box("pick")) box("pick").value = passage;
      reach();
      soon();
      return true;
    }

    function hover(where, each) {
      if (!pointed && (held.size || (each === at && where === shown(side)))) return;
      pointed = null;
      if (held.size) return acted();
      if (crossing()) side = where;
      at = each;
      untouched = false;
      reach();
      acted();
    }

    function hold(where, each) {
      pointed = null;
      if (crossing() && where !== side) { held.clear(); side = where; }
      if (!held.delete(each)) held.add(each);
      at = each;
      link();
      acted();
    }

    function point(event) {
      const area = square.getBoundingClientRect();
      const index = (part, which) => Math.max(0, Math.min(Math.floor(part * tokens(which).length), tokens(which).length - 1));
      const queries = index((event.clientY - area.top) / area.height, "queries");
      const keys = index((event.clientX - area.left) / area.width, "keys");
      pointed = now().causal && keys > queries || !isKept(layer, head) ? null : { queries, keys };
      untouched = false;
      if (pointed && !held.size) at = pointed[side];
      acted();
    }

    for (const kind of ["pointermove", "pointerdown"]) square?.addEventListener(kind, point); // a finger's stays
    square?.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") { pointed = null; acted(); } });
    const on = (kind, act) => texts.addEventListener(kind, event => {
      const button = event.target.closest?.(".token");
      if (button) act(button.closest(".viewer-text").dataset.side, +button.dataset.at, event);
    });
    for (const kind of ["pointerover", "focusin"]) on(kind, hover);
    on("click", hold);
    on("keydown", (where, each, event) => {
      const buttons = panels[where], to = { ArrowLeft: each - 1, ArrowRight: each + 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (!buttons[to] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      buttons[each].tabIndex = -1;
      buttons[to].tabIndex = 0;
      buttons[to].focus();
    });
    heads.addEventListener("click", event => {
      const cell = event.target.closest(".head");
      if (cell) turnTo(kind, ...cell.dataset.place.split(".").map(Number));
    });
    heads.addEventListener("keydown", event => {
      const step = STEPS[event.key], to = step && cells.get(`${layer + step[0]}.${head + step[1]}`);
      if (!to) return;
      event.preventDefault();
      turnTo(kind, layer + step[0], head + step[1]);
      to.focus();
    });
    turn.addEventListener("click", flip);
    const predict = () => next.setAttribute("aria-pressed", root.classList.toggle("predicting"));
    next.addEventListener("click", () => { predict(); write(); soon(); });
    box("lines").addEventListener("click", ({ currentTarget }) => {
      currentTarget.setAttribute("aria-pressed", root.classList.toggle("lined"));
      soon();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawn = null; soon(); });
    root.addEventListener("keydown", event => {
      if (event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|INPUT)$/.test(event.target.tagName)) return;
      if (event.key === "Escape") { held.clear(); pointed = null; link(); acted(); }
      const step = { j: 1, k: -1 }[event.key], count = now().layers * now().heads;
      if (event.key === "t") flip();
      if (step && !pinned) {
        const next = (layer * now().heads + head + step + count) % count;
        turnTo(kind, Math.floor(next / now().heads), next % now().heads);
        const detail = { stack: now().stack, attention: now().attention, layer, head };
        document.dispatchEvent(new CustomEvent("interp:turned", { detail })); // a page about heads follows
      }
    });
    document.addEventListener("interp:step", ({ detail }) => {
      const rewrite = !detail !== !past; // next words are known of the trained model alone
      past = detail;
      if (rewrite) write();
      soon();
    });
    document.addEventListener("interp:head", event => {
      const which = kindOf(event.detail);
      if (which >= 0 && !pinned) turnTo(which, event.detail.layer, event.detail.head);
    });
    if (data.passages.length > 1 && !pinned) {
      const pick = make("select", { className: "viewer-pick" });
      pick.append(...data.passages.map((each, number) => make("option", { value: number, textContent: each.title })));
      pick.addEventListener("change", () => {
        passage = +pick.value;
        kind = Math.min(kind, kindsNow().length - 1);
        begin();
        link();
        acted();
      });
      box("pickers").append(make("label", {}, "Text ", pick));
    }
    if (data.linked) addEventListener("hashchange", () => follow(location.hash.slice(1)));

    root.classList.add("live");
    if (pinned) {
      passage = pinned.passage;
      turnTo(pinned.kind, pinned.layer, pinned.head);
      return;
    }
    if (data.heads && tokens("queries").length <= 48) predict(); // a longer text would be buried
    if (!(data.linked && follow(location.hash.slice(1)))) turnTo(Math.max(0, kindOf(data.first)), data.first.layer, data.first.head);
  }

  for (const root of document.querySelectorAll("section.viewer")) view(root);
})();
