// Where does each token look? One section.viewer a time: hover or focus a token, click to hold it, choose a head.
"use strict";
(() => {
  const SAID = 0.1, MOST = 3; // of what a head looks at, what is said in words
  const PRONOUN = /^(he|him|his|himself|she|her|hers|herself)$/i;
  const make = (tag, set = {}, ...inside) => {
    const { role, label, ...rest } = set, made = Object.assign(document.createElement(tag), rest);
    if (role) made.setAttribute("role", role);
    if (label) made.setAttribute("aria-label", label);
    made.append(...inside);
    return made;
  };
  const percent = share => `${Math.round(share * 100)}%`;
  const plain = token => token.trim() || token.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "␣";
  const listed = words => words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
  const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] };

  async function inflate(text) {
    const raw = Uint8Array.from(atob(text), sign => sign.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  function view(root) {
    const data = JSON.parse(root.querySelector("script[type='application/json']").textContent);
    const called = new Map(data.called.map(([s, a, l, h, words, behaviour, asks, needed]) => [`${s} ${a} ${l}.${h}`, { words, behaviour, asks, needed }]));
    const box = name => root.querySelector(`.viewer-${name}`);
    const texts = box("texts"), says = box("says"), heads = box("heads"), kinds = box("kinds"), turn = box("turn");
    // `side`: which tokens are picked, those that look ("queries") or those that are looked at ("keys")
    let passage = 0, kind = 0, layer = 0, head = 0, side = "queries", at = 0, held = new Set(), wanted = 0, untouched = true;
    let patterns = new Map(), panels = {}, painted = {}, cells = new Map();

    const kindsNow = () => data.passages[passage].attentions;
    const now = () => kindsNow()[kind];
    const crossing = () => now().keys !== null;
    const tokens = which => which === "keys" && crossing() ? now().keys : now().queries;
    const other = () => side === "queries" ? "keys" : "queries";
    const shown = which => crossing() ? which : "queries"; // the panel in which tokens of that side stand
    const titled = each => each.attention === "cross" ? "cross-attention" : each.stack;
    const named = (l, h) => `${data.several ? `${titled(now())} ` : ""}L${l}.H${h}`;
    const about = (l, h) => called.get(`${now().stack} ${now().attention} ${l}.${h}`);
    const isKept = (l, h) => `${l}.${h}` in now().kept;

    // The bytes of the head that is looked at, once they are inflated; null until then, and where it was left out.
    function bytes() {
      const name = `${passage} ${kind} ${layer}.${head}`, packed = now().kept[`${layer}.${head}`];
      if (!packed) return null;
      if (patterns.has(name)) return patterns.get(name);
      patterns.set(name, null);
      inflate(packed).then(found => { patterns.set(name, found); soon(); });
      return null;
    }

    function share(pattern, query, key) {
      if (now().causal) return key > query ? 0 : pattern[query * (query + 1) / 2 + key] / 255;
      return pattern[query * tokens("keys").length + key] / 255;
    }

    const picks = () => held.size ? [...held].sort((a, b) => a - b) : [at];

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
      const names = tokens("queries"), word = each => /\p{L}/u.test(names[each]) && !/^(<.*>|\[.*\])$/.test(names[each]);
      const before = each => pronoun(each + 1);
      const fact = about(layer, head), order = fact?.words === "antecedent" ? [pronoun, before] : [before, pronoun];
      const of = now() === kindsNow()[0] ? data.passages[passage].asking[fact?.asks] ?? [] : [];
      const asked = [each => of.includes(each), ...fact?.behaviour === "coreference" ? order : [], word];
      return asked.map(asks => hardest(pattern, asks, word)).find(each => each !== null) ?? at;
    }

    function pronoun(each) {
      return PRONOUN.test((tokens("queries")[each] ?? "").trim());
    }

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

    function soon() {
      if (!wanted) wanted = requestAnimationFrame(() => { wanted = 0; paint(); });
    }

    function paint() {
      const pattern = bytes();
      if (pattern && untouched && !held.size && side === "queries" && !crossing()) { at = telling(pattern); reach(); }
      if (pattern) untouched = false;
      const found = pattern && shares(pattern), panel = shown(other());
      for (const which of Object.keys(panels)) {
        const before = painted[which], chosen = which === shown(side) ? new Set(picks()) : new Set();
        panels[which].forEach((button, each) => {
          const level = which === panel && found ? Math.round(found[each] * 100) : 0, mark = chosen.has(each);
          if (before.levels[each] !== level) {
            before.levels[each] = level;
            button.style.setProperty("--share", level / 100);
            button.classList.toggle("looked-at", level >= SAID * 100);
          }
          if (before.marks[each] !== mark) {
            before.marks[each] = mark;
            button.classList.toggle("picked", mark);
          }
        });
      }
      say(found, pattern);
    }

    function say(found, pattern) {
      const fact = about(layer, head), begins = named(layer, head);
      const name = `${begins[0].toUpperCase()}${begins.slice(1)}${fact ? ` (${fact.words})` : ""}`;
      root.dataset.painted = pattern ? `${named(layer, head)} ${side} ${picks().join("+")}` : "";
      if (!pattern) {
        says.textContent = isKept(layer, head) ? "" : `${name} was left out, to keep this page small.`;
        return;
      }
      const quoted = each => `“${plain(each)}”`;
      const text = tokens(side);
      const meant = text === kindsNow()[0].queries ? data.passages[passage].meant : {}; // whom a pronoun of the text stands for
      const picked = pick => quoted(text[pick]) + (meant[pick] ? ` (meaning ${quoted(meant[pick])})` : "");
      const chosen = listed(picks().map(picked));
      const best = [...found.keys()].filter(each => found[each] >= SAID).sort((a, b) => found[b] - found[a]).slice(0, MOST);
      const several = picks().length > 1, itself = each => !crossing() && !several && each === picks()[0];
      const told = listed(best.map(each => `${itself(each) ? "itself" : quoted(tokens(other())[each])} (${percent(found[each])})`));
      if (side === "queries") {
        const [pick] = picks(), chooses = fact?.behaviour === "coreference" && !several && pronoun(pick + 1);
        const look = several ? "together look" : chooses ? `before ${picked(pick + 1)} looks` : "looks";
        says.textContent = `${name}: ${chosen} ${look} ` + (told ? `at ${told}.` : `at no token with ${percent(SAID)} or more.`);
      } else {
        const are = several ? "together are" : "is";
        says.textContent = `${name}: ${chosen} ${are} looked at ` + (told ? `by ${told}.` : `by no token with ${percent(SAID)} or more.`);
      }
    }

    function write() {
      panels = {};
      texts.replaceChildren();
      for (const which of crossing() ? ["queries", "keys"] : ["queries"]) {
        const line = make("div", { className: "viewer-text", role: "group", label: caption(which) });
        panels[which] = tokens(which).map((token, each) => {
          const button = make("button", { type: "button", className: "token", textContent: plain(token), dir: "auto" });
          if (/^\s/.test(token) && each) line.append(" ");
          if (!token.trim()) button.classList.add("soft");
          button.dataset.at = each;
          button.tabIndex = -1;
          line.append(button);
          if (token.includes("\n")) line.append(make("br"));
          return button;
        });
        painted[which] = { levels: new Int16Array(panels[which].length), marks: [] };
        line.dataset.side = which;
        texts.append(crossing() ? make("div", {}, make("p", { className: "soft", textContent: caption(which) }), line) : line);
      }
      texts.classList.toggle("beside", crossing());
      reach();
    }

    function caption(which) {
      if (!crossing()) return "Text, token by token";
      return which === "queries" ? "Target: looks" : "Source: looked at";
    }

    // One token of each text is reached by the tab key, the others by arrows.
    function reach() {
      for (const [which, buttons] of Object.entries(panels)) {
        const own = which === shown(side) ? at : Math.min(at, buttons.length - 1);
        buttons.forEach((button, each) => { button.tabIndex = each === own ? 0 : -1; });
      }
    }

    function grid() {
      kinds.replaceChildren(...kindsNow().length < 2 ? [] : kindsNow().map((each, number) => {
        const button = make("button", { type: "button", textContent: titled(each) });
        button.setAttribute("aria-pressed", number === kind);
        button.addEventListener("click", () => { turnTo(number, layer, head); kinds.children[number].focus(); });
        return button;
      }));
      heads.replaceChildren();
      cells = new Map();
      if (!data.heads) return;
      heads.style.setProperty("--heads", now().heads);
      const axis = said => make("span", { className: "soft axis", textContent: said });
      heads.append(axis("Layer ↑"));
      for (let l = now().layers - 1; l >= 0; l--) {
        heads.append(make("span", { className: "soft", textContent: `L${l}` }));
        for (let h = 0; h < now().heads; h++) {
          const fact = about(l, h), cell = make("button", { type: "button", className: `head ${fact?.behaviour ?? ""}` });
          const words = fact ? `: ${fact.words}` : isKept(l, h) ? "" : ": left out";
          cell.setAttribute("aria-label", named(l, h) + words);
          cell.title = named(l, h) + words;
          if (fact) cell.classList.add("called", fact.needed ? "needed" : "looks");
          cell.classList.toggle("absent", !isKept(l, h));
          cell.dataset.place = `${l}.${h}`;
          cells.set(`${l}.${h}`, cell);
          heads.append(cell);
        }
      }
      heads.append(make("span"));
      for (let h = 0; h < now().heads; h++) heads.append(make("span", { className: "soft", textContent: `H${h}` }));
      heads.append(axis("Head →"));
      choose();
    }

    function choose() {
      for (const [place, cell] of cells) {
        const own = place === `${layer}.${head}`;
        cell.tabIndex = own ? 0 : -1;
        cell.setAttribute("aria-pressed", own);
      }
      root.classList.remove("position", "part-of-speech", "coreference");
      const fact = about(layer, head);
      if (fact?.behaviour) root.classList.add(fact.behaviour);
      box("head").textContent = (data.heads && !data.several ? "Head " : "") + named(layer, head) + (fact ? ` · ${fact.words}` : "");
    }

    // Looks at a head, of whichever kind of attention; texts are written anew where that has others.
    function turnTo(newKind, newLayer, newHead) {
      const rewrite = newKind !== kind || !texts.children.length;
      kind = newKind;
      layer = Math.min(newLayer, now().layers - 1);
      head = Math.min(newHead, now().heads - 1);
      if (rewrite) begin();
      else choose();
      link();
      soon();
    }

    function begin() {
      held.clear();
      if (crossing() || "keys" in panels) side = "queries"; // of two texts, or after them
      at = Math.max(0, tokens(side).length - 2); // the last ones have most to look at, and end in a full stop
      untouched = true;
      write();
      grid();
      choose();
      turn.hidden = crossing();
      turn.setAttribute("aria-pressed", side === "keys");
    }

    function flip() {
      if (crossing()) return;
      side = other();
      turn.setAttribute("aria-pressed", side === "keys");
      link();
      soon();
    }

    // What is seen, as an address: #L2.H5, #cross.L2.H5/12+14/to/p1.
    function link() {
      if (!data.linked) return;
      const parts = [`${data.several ? `${now().attention === "cross" ? "cross" : now().stack}.` : ""}L${layer}.H${head}`];
      if (held.size) parts.push(picks().join("+"));
      if (side === "keys") parts.push("to");
      if (passage) parts.push(`p${passage}`);
      try { history.replaceState(null, "", `#${parts.join("/")}`); } catch { /* a frame without an address */ }
    }

    function follow(address) {
      const [name, ...rest] = address.split("/"), found = /^(?:(\w+)\.)?L(\d+)\.H(\d+)$/.exec(name);
      const number = +(rest.map(part => /^p(\d+)$/.exec(part)).find(Boolean)?.[1] ?? 0), before = passage;
      if (!found || number >= data.passages.length) return false;
      passage = number;
      const own = each => (each.attention === "cross" ? "cross" : each.stack) === found[1] || !found[1] && !data.several;
      const which = kindsNow().findIndex(own);
      if (which < 0) { passage = before; return false; }
      kind = which;
      layer = Math.min(+found[2], now().layers - 1);
      head = Math.min(+found[3], now().heads - 1);
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

    function hover(button) {
      const where = button.closest(".viewer-text").dataset.side, each = +button.dataset.at;
      if (held.size || (each === at && where === shown(side))) return;
      if (crossing()) side = where;
      at = each;
      untouched = false;
      reach();
      soon();
    }

    function hold(button) {
      const where = button.closest(".viewer-text").dataset.side, each = +button.dataset.at;
      if (crossing() && where !== side) { held.clear(); side = where; }
      if (!held.delete(each)) held.add(each);
      at = each;
      link();
      soon();
    }

    const tokenOf = event => event.target.closest?.(".token");
    texts.addEventListener("pointerover", event => { const button = tokenOf(event); if (button) hover(button); });
    texts.addEventListener("focusin", event => { const button = tokenOf(event); if (button) hover(button); });
    texts.addEventListener("click", event => { const button = tokenOf(event); if (button) hold(button); });
    texts.addEventListener("keydown", event => {
      const button = tokenOf(event), buttons = button && panels[button.closest(".viewer-text").dataset.side];
      if (!buttons || event.ctrlKey || event.metaKey || event.altKey) return;
      const each = +button.dataset.at;
      const to = { ArrowLeft: each - 1, ArrowRight: each + 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (buttons[to] === undefined) return;
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
    root.addEventListener("keydown", event => {
      if (event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|INPUT)$/.test(event.target.tagName)) return;
      if (event.key === "Escape") { held.clear(); link(); soon(); }
      const step = { j: 1, k: -1 }[event.key], count = now().layers * now().heads;
      if (event.key === "t") flip();
      if (step) {
        const next = (layer * now().heads + head + step + count) % count;
        turnTo(kind, Math.floor(next / now().heads), next % now().heads);
        const detail = { stack: now().stack, attention: now().attention, layer, head };
        document.dispatchEvent(new CustomEvent("interp:turned", { detail })); // a page about heads follows
      }
    });
    document.addEventListener("interp:head", event => {
      const { stack, attention, layer: l, head: h } = event.detail;
      const which = kindsNow().findIndex(each => each.attention === attention && (stack === null || each.stack === stack));
      if (which >= 0) turnTo(which, l, h);
    });
    if (data.passages.length > 1) {
      const pick = make("select", { className: "viewer-pick" });
      pick.append(...data.passages.map((each, number) => make("option", { value: number, textContent: each.title })));
      pick.addEventListener("change", () => {
        passage = +pick.value;
        kind = Math.min(kind, kindsNow().length - 1);
        begin();
        link();
        soon();
      });
      box("pickers").append(make("label", {}, "Text ", pick));
    }
    if (data.linked) addEventListener("hashchange", () => follow(location.hash.slice(1)));

    root.classList.add("live");
    if (!(data.linked && follow(location.hash.slice(1)))) {
      const first = data.first, which = kindsNow().findIndex(each => each.stack === first.stack && each.attention === first.attention);
      kind = Math.max(0, which);
      layer = first.layer;
      head = first.head;
      begin();
      soon();
    }
  }

  for (const root of document.querySelectorAll("section.viewer")) view(root);
})();
