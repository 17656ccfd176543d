// Small drawing tools for the interactive figures: elements, scales, ticks, axes. Plain SVG, no dependencies.
"use strict";

const derexPlot = (() => {
  const SPACE = "http://www.w3.org/2000/svg";

  /** A new SVG element with its attributes, put into a parent. */
  function svg(tag, attributes, parent) {
    const element = document.createElementNS(SPACE, tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    if (parent) parent.appendChild(element);
    return element;
  }

  /** A new HTML element with its attributes and text, put into a parent. */
  function html(tag, attributes, parent, text) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  }

  /** A number in three significant digits; a dash where there is none. */
  function format(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e-4 && size < 1e5) return String(Number(value.toPrecision(3))).replace("-", "−");
    return power(value);
  }

  const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

  function superscript(exponent) {
    const digits = [...String(Math.abs(exponent))].map((digit) => SUPERSCRIPTS[digit]).join("");
    return (exponent < 0 ? "⁻" : "") + digits;
  }

  function power(value) {
    const [mantissa, exponent] = value.toExponential(1).split("e").map(Number);
    const ten = `10${superscript(exponent)}`;
    return (mantissa === 1 ? ten : `${mantissa}×${ten}`).replace("-", "−");
  }

  const finite = (values) => values.filter((value) => value !== null && Number.isFinite(value));

  /** Lowest and highest finite value, or [0, 1] where there is none. */
  function extent(values) {
    const kept = finite(values);
    if (!kept.length) return [0, 1];
    return [kept.reduce((a, b) => Math.min(a, b)), kept.reduce((a, b) => Math.max(a, b))];
  }

  /** A linear scale with some air at both ends. */
  function linear(domain, range, air = 0.05) {
    let [low, high] = domain;
    if (!(high > low)) [low, high] = [low - 0.5, high + 0.5];
    const pad = air * (high - low);
    [low, high] = [low - pad, high + pad];
    const scale = (v) => (v === null ? null : range[0] + ((v - low) / (high - low)) * (range[1] - range[0]));
    scale.ticks = () => linearTicks(low, high);
    scale.text = (v) => format(Math.abs(v) < 1e-12 * (high - low) ? 0 : v);
    return scale;
  }

  /** A log scale; null for values that have no logarithm. */
  function log(domain, range, air = 0.05) {
    const inner = linear(domain.map(Math.log10), range, air);
    const scale = (v) => (v === null || !(v > 0) ? null : inner(Math.log10(v)));
    const span = Math.log10(domain[1] / domain[0]);
    scale.ticks = () => logTicks(domain, span);
    scale.text = span > 4 ? power : format;
    return scale;
  }

  function linearTicks(low, high, count = 5) {
    const rough = (high - low) / count;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((multiple) => rough <= multiple * unit);
    const ticks = [];
    for (let i = Math.ceil(low / step); i * step <= high; i++) ticks.push(i * step);
    return ticks;
  }

  function logTicks([low, high], span) {
    if (span < 0.35) return linearTicks(low, high, 4).filter((tick) => tick > 0);
    const steps = span < 1.6 ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil(span / 6));
    const ticks = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
      if (e % every) continue;
      for (const step of steps) ticks.push(step * 10 ** e);
    }
    return ticks.filter((tick) => tick >= low * 0.8 && tick <= high * 1.25);
  }

  /** A log scale where values allow it, else a linear one. */
  function logOrLinear(values, range) {
    const positive = finite(values).filter((value) => value > 0);
    const [low, high] = extent(positive);
    return positive.length && high > low ? log([low, high], range) : linear(extent(values), range);
  }

  /** Draws ticks, grid and names of two axes into a group, anew. */
  function axes(group, box, x, y, xName, yName) {
    group.replaceChildren();
    for (const tick of x.ticks()) {
      const place = x(tick);
      if (place === null || place < box.left - 0.5 || place > box.right + 0.5) continue;
      svg("line", { x1: place, x2: place, y1: box.top, y2: box.bottom, class: "ex-gridline" }, group);
      svg("text", { x: place, y: box.bottom + 15, "text-anchor": "middle" }, group).textContent = x.text(tick);
    }
    for (const tick of y.ticks()) {
      const place = y(tick);
      if (place === null || place < box.top - 0.5 || place > box.bottom + 0.5) continue;
      svg("line", { x1: box.left, x2: box.right, y1: place, y2: place, class: "ex-gridline" }, group);
      svg("text", { x: box.left - 7, y: place + 4, "text-anchor": "end" }, group).textContent = y.text(tick);
    }
    svg("path", { d: `M${box.left} ${box.top}V${box.bottom}H${box.right}`, class: "ex-axis", fill: "none" }, group);
    const middle = (box.left + box.right) / 2;
    const name = { class: "ex-name", "text-anchor": "middle" };
    svg("text", { ...name, x: middle, y: box.bottom + 33 }, group).textContent = xName;
    const [tx, ty] = [12, (box.top + box.bottom) / 2];
    svg("text", { ...name, x: tx, y: ty, transform: `rotate(-90 ${tx} ${ty})` }, group).textContent = yName;
  }

  /** The colour at a place in [0, 1] of a list of stops. */
  function colourAt(stops, place) {
    const at = Math.min(Math.max(place, 0), 1) * (stops.length - 1);
    const index = Math.min(Math.floor(at), stops.length - 2);
    const [from, to] = [stops[index], stops[index + 1]].map((stop) =>
      [1, 3, 5].map((i) => parseInt(stop.slice(i, i + 2), 16)),
    );
    const mixed = from.map((part, i) => Math.round(part + (at - index) * (to[i] - part)));
    return `rgb(${mixed.join(" ")})`;
  }

  let count = 0;

  /** A panel with heading, a line of text, and an SVG that can be focused. */
  function panel(parent, title, label, width, height) {
    const root = html("div", { class: "ex-panel" }, parent);
    html("h3", {}, root, title);
    const note = html("p", {}, root);
    const attributes = { viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "application", "aria-label": label };
    return { root, note, width, height, svg: svg("svg", attributes, root) };
  }

  /** A map as a panel: its walls, a square for each state, a mark for one of them, and ways to find states. */
  function worldMap(parent, title, label, { rows, positions }, size) {
    const cell = size / Math.max(rows.length, rows[0].length);
    const map = panel(parent, title, label, rows[0].length * cell, rows.length * cell);
    const square = (row, column, side, attributes) =>
      svg("rect", { x: column * cell, y: row * cell, width: side, height: side, ...attributes }, map.svg);
    rows.forEach((row, r) => [...row].forEach((character, c) => {
      if (character === "#") square(r, c, cell + 0.6, { class: "ex-wall" });
    }));
    const overlap = cell > 14 ? -0.7 : 0.3;
    map.cell = cell;
    map.cells = positions.map(([r, c]) => square(r, c, cell + overlap));
    map.marks = ["ex-mark-halo", "ex-mark"].map((name) => square(0, 0, cell, { class: name, visibility: "hidden" }));
    const states = new Map(positions.map(([row, column], i) => [`${row},${column}`, i]));
    const at = (row, column) => states.get(`${row},${column}`) ?? null;
    /** The state at a place of the panel, or null. */
    map.find = (x, y) => at(Math.floor(y / cell), Math.floor(x / cell));
    /** The next state in a direction, across walls too; the same one where there is none. */
    map.next = (from, [down, right]) => {
      let [row, column] = positions[from];
      while (row >= 0 && row < rows.length && column >= 0 && column < rows[0].length) {
        [row, column] = [row + down, column + right];
        if (at(row, column) !== null) return at(row, column);
      }
      return from;
    };
    map.mark = (i) => moveMarks(map.marks, i === null ? null : positions[i].map((part) => part * cell), ["y", "x"]);
    return map;
  }

  /** Shows marks at a place, or hides them where it is null. */
  function moveMarks(marks, where, names) {
    for (const mark of marks) {
      mark.setAttribute("visibility", where ? "visible" : "hidden");
      if (where) names.forEach((name, axis) => mark.setAttribute(name, where[axis]));
    }
  }

  /** The place of a pointer in the coordinates of a panel's SVG. */
  function pointer(plot, event) {
    const frame = plot.svg.getBoundingClientRect();
    const scale = plot.width / frame.width;
    return [(event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale];
  }

  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

  /** Numbers of a typed array from the base64 text of their little-endian bytes. */
  function decode(text, Type) {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    return new Type(bytes.buffer);
  }

  /** Makes an SVG a picture that is looked at only, without focus. */
  function asPicture(plot) {
    plot.svg.setAttribute("role", "img");
    plot.svg.removeAttribute("tabindex");
    plot.svg.style.cursor = "default";
  }

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  /** Radio buttons as one row of options. */
  function options(parent, legend, items, chosen, onChange) {
    const fieldset = html("fieldset", {}, parent);
    html("legend", {}, fieldset, legend);
    const row = html("div", { class: "ex-options" }, fieldset);
    const name = `ex-${count++}`;
    items.forEach(({ value, text, colour }) => {
      const label = html("label", {}, row);
      const input = html("input", { type: "radio", name, value }, label);
      input.checked = value === chosen;
      input.addEventListener("change", () => onChange(value));
      const span = html("span", {}, label);
      if (colour) html("i", {}, span).style.background = colour;
      span.append(text);
    });
  }

  return {
    svg, html, format, extent, finite, linear, logOrLinear, axes, colourAt, panel, options,
    worldMap, moveMarks, pointer, decode, asPicture, dark, still, STEPS,
  };
})();
