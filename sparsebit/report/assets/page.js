"use strict";
(() => {
  const root = document.documentElement;

  // Light and dark: what the system says, until the button says otherwise.
  const remembered = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  if (remembered) root.dataset.theme = remembered;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* a file may not be allowed to remember */ }
  });

  // Copy buttons.
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", () => {
      const text = document.getElementById(button.dataset.copy);
      const said = (word) => { button.textContent = word; setTimeout(() => { button.textContent = "copy"; }, 1500); };
      const select = () => { getSelection().selectAllChildren(text); said("selected"); };
      if (navigator.clipboard) navigator.clipboard.writeText(text.textContent).then(() => said("copied"), select);
      else select();
    });
  }

  // Sorting the layers: worst first, then in the order of the graph again.
  const body = document.querySelector("#layers tbody");
  const rows = body ? [...body.rows] : [];
  for (const button of document.querySelectorAll("[data-sort]")) {
    button.addEventListener("click", () => {
      const head = button.closest("th"), sorted = head.getAttribute("aria-sort") === "ascending";
      document.querySelectorAll("#layers th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      const number = (row) => parseFloat(row.cells[+button.dataset.sort].dataset.value.replace("inf", "Infinity"));
      const order = sorted ? rows : [...rows].sort((a, b) => number(a) - number(b));
      if (!sorted) head.setAttribute("aria-sort", "ascending");
      body.append(...order);
    });
  }

  // The graph: a view that moves, and one current operator.
  const graph = document.querySelector(".graph");
  if (!graph) return;
  const whole = graph.viewBox.baseVal, all = { x: whole.x, y: whole.y, width: whole.width, height: whole.height };
  const nodes = [...graph.querySelectorAll(".node")];
  const inputs = nodes.map((node) => node.dataset.inputs.split(" ").filter(Boolean).map(Number));
  const readers = nodes.map(() => []);
  inputs.forEach((sources, index) => sources.forEach((source) => readers[source].push(index)));
  const place = (node) => { const at = node.transform.baseVal[0].matrix; return { x: at.e, y: at.f }; };
  let current = -1;

  const look = (x, y, width, height) => graph.setAttribute("viewBox", `${x} ${y} ${width} ${height}`);
  const fit = () => look(all.x, all.y, all.width, all.height);
  const readable = () => {  // a tall graph begins at its top, large enough to read
    const box = graph.getBoundingClientRect();
    if (!box.width || all.height / all.width < 1.4 * box.height / box.width) return fit();
    const width = Math.max(Math.min(all.width, 1.3 * box.width), 0.9 * box.width);
    look(place(nodes[0]).x + 88 - width / 2, all.y, width, width * box.height / box.width);
  };
  const zoom = (factor, cx, cy) => {
    const v = graph.viewBox.baseVal;
    const width = Math.min(Math.max(v.width * factor, 120), 8 * Math.max(all.width, all.height));
    const scale = width / v.width;
    if (cx === undefined) { cx = v.x + v.width / 2; cy = v.y + v.height / 2; }
    look(cx - (cx - v.x) * scale, cy - (cy - v.y) * scale, width, v.height * scale);
  };
  const point = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(graph.getScreenCTM().inverse());
    return [at.x, at.y];
  };

  const show = (index, scroll) => {
    if (current >= 0) nodes[current].classList.remove("current");
    current = index;
    const node = nodes[index];
    node.classList.add("current");
    graph.setAttribute("aria-activedescendant", node.id);
    const words = document.getElementById("selected");
    words.textContent = node.getAttribute("aria-label");
    rows.forEach((row) => row.classList.toggle("current", node.dataset.layer !== "" && row.dataset.name === node.dataset.layer));
    const row = rows.find((each) => node.dataset.layer !== "" && each.dataset.name === node.dataset.layer);
    if (row) {
      const link = document.createElement("a");
      link.href = `#layer-${row.id.slice(4)}`;
      link.textContent = "show its numbers";
      words.append(" · ", link);
    }
    if (scroll) {
      const at = place(node), v = graph.viewBox.baseVal;
      const x = at.x < v.x || at.x + 176 > v.x + v.width ? at.x + 88 - v.width / 2 : v.x;
      const y = at.y < v.y || at.y + 52 > v.y + v.height ? at.y + 26 - v.height / 2 : v.y;
      look(x, y, v.width, v.height);
    }
  };
  const open = () => {
    const row = rows.find((each) => current >= 0 && each.dataset.name === nodes[current].dataset.layer);
    if (!row) return;
    const details = document.getElementById(`layer-${row.id.slice(4)}`);
    details.open = true;
    details.scrollIntoView({ block: "center" });
    details.querySelector("summary").focus({ preventScroll: true });
  };
  const beside = (step) => {
    const here = place(nodes[current]);
    const row = nodes.map((_, index) => index).filter((index) => place(nodes[index]).y === here.y);
    row.sort((a, b) => place(nodes[a]).x - place(nodes[b]).x);
    return row[row.indexOf(current) + step];
  };

  graph.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const first = current < 0;
    const next = {
      ArrowDown: () => first ? 0 : readers[current][0], ArrowUp: () => first ? 0 : inputs[current][0],
      ArrowRight: () => first ? 0 : beside(1), ArrowLeft: () => first ? 0 : beside(-1),
      Home: () => 0, End: () => nodes.length - 1,
    }[event.key];
    if (next) { const index = next(); if (index !== undefined) show(index, true); }
    else if (event.key === "+" || event.key === "=") zoom(1 / 1.3);
    else if (event.key === "-") zoom(1.3);
    else if (event.key === "0") fit();
    else if (event.key === "Enter") open();
    else return;
    event.preventDefault();
  });
  graph.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;  // the page scrolls as everywhere
    event.preventDefault();
    zoom(Math.exp(event.deltaY / 300), ...point(event));
  }, { passive: false });

  const fingers = new Map();
  let moved = 0;
  graph.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event);
    moved = 0;
  });
  graph.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const [x0, y0] = point(before), [x1, y1] = point(event), v = graph.viewBox.baseVal;
    moved += Math.hypot(event.clientX - before.clientX, event.clientY - before.clientY);
    if (fingers.size === 1) {
      if (moved > 4) { graph.setPointerCapture(event.pointerId); graph.classList.add("moving"); }
      look(v.x + x0 - x1, v.y + y0 - y1, v.width, v.height);
    } else {
      const other = [...fingers.values()].find((each) => each.pointerId !== event.pointerId);
      const far = (a) => Math.hypot(a.clientX - other.clientX, a.clientY - other.clientY) || 1;
      zoom(far(before) / far(event), ...point(other));
    }
    fingers.set(event.pointerId, event);
  });
  const lift = (event) => { fingers.delete(event.pointerId); graph.classList.remove("moving"); };
  graph.addEventListener("pointerup", lift);
  graph.addEventListener("pointercancel", lift);
  nodes.forEach((node, index) => {
    node.addEventListener("click", () => { if (moved < 5) show(index, false); });
    node.addEventListener("dblclick", open);
  });
  document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
    ({ in: () => zoom(1 / 1.3), out: () => zoom(1.3), fit })[button.dataset.zoom]();
  }));
  // A link to a layer opens it.
  const opened = () => { const target = document.getElementById(location.hash.slice(1)); if (target && target.tagName === "DETAILS") target.open = true; };
  addEventListener("hashchange", opened);
  opened();
  readable();
})();
