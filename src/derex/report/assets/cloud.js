// Clouds of histories in three dimensions, turned by the reader, on a plain canvas; linked with the map.
"use strict";

(() => {
  const { html, format, options, worldMap, pointer, decode, dark, still, STEPS } = derexPlot;
  const VIEW = { yaw: -0.6, pitch: 0.38, zoom: 1 };
  const FLAT = { yaw: 0, pitch: Math.PI / 2, zoom: 1.5 }; // two features are seen from above
  const AWAY = 5; // distance of the eye, in halves of the box
  const TURN = 0.22; // radians a second
  const KEYS = "Arrow keys move between states, Enter keeps one, Escape lets go.";
  const CORNERS = [...Array(8).keys()].map((i) => [i & 1, (i >> 1) & 1, (i >> 2) & 1].map((bit) => 2 * bit - 1));
  const EDGES = CORNERS.flatMap((_, i) => [0, 1, 2].filter((axis) => !((i >> axis) & 1)).map((axis) => [i, i | (1 << axis), axis]));

  class Cloud {
    constructor(figure) {
      this.data = JSON.parse(figure.querySelector("script").textContent);
      this.title = figure.dataset.title;
      for (const cloud of this.data.clouds) cloud.values = decode(cloud.features, Float32Array);
      this.chosen = 0;
      this.features = [0, 1, 2];
      this.active = this.pinned = this.point = null;
      this.view = { ...(this.cloud.k > 2 ? VIEW : FLAT) };
      this.build(figure.querySelector(".ex-root"));
      this.choose(0);
      this.mark(null);
      this.turn(false);
      dark.addEventListener("change", () => this.draw());
      still.addEventListener("change", () => this.turn(false));
      new ResizeObserver(() => this.draw()).observe(this.canvas);
    }

    get cloud() {
      return this.data.clouds[this.chosen];
    }

    // -- controls and panels -----------------------------------------------------------------------------

    build(root) {
      root.replaceChildren();
      this.controls = html("div", { class: "ex-controls" }, root);
      const clouds = this.data.clouds.map(({ title }, i) => ({ value: i, text: title }));
      options(this.controls, "Histories", clouds, 0, (value) => this.choose(value));
      const most = Math.max(...this.data.clouds.map(({ k }) => k));
      if (most > 3) this.buildFeatures(most);
      const inline = html("div", { class: "ex-inline" }, this.controls);
      this.button = html("button", { type: "button", class: "ex-button", "aria-pressed": "false" }, inline, "Turn slowly");
      this.button.addEventListener("click", () => this.turn(!this.turning));
      html("button", { type: "button", class: "ex-button" }, inline, "Reset view").addEventListener("click", () => this.reset());
      this.readout = html("div", { class: "ex-readout", role: "status", "aria-live": "polite" }, root);
      const grid = html("div", { class: "cl-grid" }, root);
      this.buildCanvas(grid);
      const label = `Map ${this.data.name} in its reference colours. ${KEYS}`;
      this.map = worldMap(grid, "Reference colours", label, this.data, 400);
      this.map.note.textContent = "Each history has the colour of the state it ends in";
      this.map.cells.forEach((cell, i) => cell.setAttribute("fill", this.data.colours[i]));
      this.listenToMap();
      this.listenToCanvas();
    }

    buildFeatures(most) {
      const inline = html("div", { class: "ex-inline" }, this.controls);
      this.selects = [0, 1, 2].map((axis) => {
        const label = html("label", {}, inline, axis ? "" : "Features");
        const select = html("select", { "aria-label": `Feature of axis ${"XYZ"[axis]}` }, label);
        for (let i = 0; i < most; i++) html("option", { value: i }, select, `f${i + 1}`);
        select.value = axis;
        select.addEventListener("change", () => {
          this.features[axis] = Number(select.value);
          this.choose(this.chosen);
        });
        return select;
      });
    }

    buildCanvas(grid) {
      const panel = html("div", { class: "ex-panel" }, grid);
      html("h3", {}, panel, "Representation");
      this.note = html("p", {}, panel);
      const label = `${this.title}: a cloud of points. Arrow keys turn it, plus and minus zoom, Home resets the view.`;
      this.canvas = html("canvas", { class: "cl-canvas", tabindex: 0, role: "application", "aria-label": label }, panel);
    }

    /** Shows another cloud or other features of it: its points as places in the box from −1 to 1. */
    choose(number) {
      const flat = this.cloud.k < 3;
      this.chosen = number;
      const { state, values, limits, k, total, title } = this.cloud;
      if (flat !== k < 3) Object.assign(this.view, k < 3 ? FLAT : VIEW);
      const m = state.length;
      this.axes = this.features.map((feature) => (feature < k ? feature : null));
      if (k > 2 && this.axes.includes(null)) this.axes = [0, 1, 2];
      if (this.selects) this.selects.forEach((select, i) => this.offer(select, this.axes[i], k));
      this.places = this.axes.map((feature) => {
        if (feature === null) return new Float32Array(m);
        const [low, high] = limits[feature];
        return values.subarray(feature * m, (feature + 1) * m).map((v) => (2 * (v - low)) / (high - low) - 1);
      });
      const inside = (i) => this.places.every((place) => Math.abs(place[i]) <= 1); // far outliers are left out
      this.order = Uint32Array.from([...Array(m).keys()].filter(inside));
      this.screen = [0, 1, 2, 3].map(() => new Float32Array(m)); // across, down, depth, size
      const names = this.axes.filter((feature) => feature !== null).map((feature) => feature + 1);
      const some = m < total ? `${m} of ${total} histories` : `${m} histories`;
      const beyond = m > this.order.length ? ` · ${m - this.order.length} beyond the box` : "";
      this.note.textContent = `${title} · ${some} · features ${names.join(", ")} of ${k}${beyond}`;
      this.point = null;
      this.mark(this.active);
    }

    offer(select, feature, k) {
      [...select.options].forEach((option, i) => (option.disabled = i >= k));
      select.disabled = k < 4;
      select.value = feature ?? 2;
    }

    reset() {
      this.turn(false);
      Object.assign(this.view, this.cloud.k > 2 ? VIEW : FLAT);
      this.draw();
    }

    /** Starts or stops the slow turn; it never starts where less motion is asked for. */
    turn(on) {
      this.turning = on && !still.matches;
      this.button.disabled = still.matches;
      this.button.title = still.matches ? "Off, as your system asks for less motion" : "";
      this.button.textContent = this.turning ? "Stop turning" : "Turn slowly";
      this.button.setAttribute("aria-pressed", String(this.turning));
      this.before = null;
      this.draw();
    }

    // -- drawing -----------------------------------------------------------------------------------------

    draw() {
      if (!this.frame) this.frame = requestAnimationFrame((now) => this.paint(now));
    }

    paint(now) {
      this.frame = null;
      const { clientWidth: width, clientHeight: height } = this.canvas;
      if (!width) return;
      if (this.turning) {
        if (this.before !== null) this.view.yaw += (Math.min(now - this.before, 100) / 1000) * TURN;
        this.before = now;
        this.draw();
      }
      const ratio = window.devicePixelRatio || 1;
      const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
      if (this.canvas.width !== across || this.canvas.height !== down) Object.assign(this.canvas, { width: across, height: down });
      this.context = this.canvas.getContext("2d");
      this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.context.clearRect(0, 0, width, height);
      this.project = this.camera(width, height);
      this.style = getComputedStyle(document.documentElement);
      this.drawBox();
      this.drawPoints(Math.min(width, height));
    }

    colour(name) {
      return this.style.getPropertyValue(name).trim();
    }

    /** The function from a place in the box to [across, down, depth, size] on the canvas. */
    camera(width, height) {
      const { yaw, pitch, zoom } = this.view;
      const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
      const unit = 0.26 * Math.min(width, height) * zoom;
      return (x, y, z) => {
        const [right, far] = [x * cy - y * sy, x * sy + y * cy];
        const depth = far * cp - z * sp;
        const size = AWAY / (AWAY + depth);
        return [width / 2 + unit * size * right, height / 2 - unit * size * (z * cp + far * sp), depth, size];
      };
    }

    /** The box behind the points, without the edges at its nearest corner, and the names of the axes. */
    drawBox() {
      const { context: pen } = this;
      const flat = this.axes[2] === null;
      const corners = CORNERS.map(([x, y, z]) => this.project(x, y, flat ? 0 : z));
      const nearest = corners.reduce((best, corner, i) => (corner[2] < corners[best][2] - 1e-9 ? i : best), 0);
      const edges = EDGES.filter(([, , axis]) => !(flat && axis === 2));
      pen.lineWidth = 1;
      pen.strokeStyle = this.colour("--faint");
      pen.globalAlpha = 0.55;
      pen.beginPath();
      for (const [a, b] of edges) {
        if (!flat && (a === nearest || b === nearest)) continue;
        pen.moveTo(corners[a][0], corners[a][1]);
        pen.lineTo(corners[b][0], corners[b][1]);
      }
      pen.stroke();
      pen.globalAlpha = 1;
      this.axes.forEach((feature, axis) => feature !== null && this.drawName(axis, feature, corners, edges));
    }

    /** The name of an axis beside its outermost edge: the lowest across the floor, the leftmost upright. */
    drawName(axis, feature, corners, edges) {
      const { context: pen } = this;
      const own = edges.filter(([, , along]) => along === axis).map(([a, b]) => [corners[a], corners[b]]);
      const outer = ([a, b]) => (axis === 2 ? -(a[0] + b[0]) : a[1] + b[1]);
      const [a, b] = own.reduce((best, edge) => (outer(edge) > outer(best) ? edge : best));
      if (Math.hypot(a[0] - b[0], a[1] - b[1]) < 30) return;
      const centre = this.project(0, 0, 0);
      const middle = [0, 1].map((i) => (a[i] + b[i]) / 2);
      const away = Math.hypot(middle[0] - centre[0], middle[1] - centre[1]) || 1;
      const out = middle.map((part, i) => (part - centre[i]) / away);
      pen.fillStyle = this.colour("--muted");
      pen.font = `12.5px ${getComputedStyle(document.body).fontFamily}`;
      pen.textAlign = out[0] < -0.25 ? "right" : out[0] > 0.25 ? "left" : "center";
      pen.textBaseline = "middle";
      pen.fillText(`feature ${feature + 1}`, middle[0] + 10 * out[0], middle[1] + 16 * out[1]);
    }

    /** Points from far to near; those of the active state on top, the others faint. */
    drawPoints(span) {
      const [across, down, depth, size] = this.screen;
      const [xs, ys, zs] = this.places;
      for (let i = 0; i < xs.length; i++) [across[i], down[i], depth[i], size[i]] = this.project(xs[i], ys[i], zs[i]);
      this.order.sort((a, b) => depth[b] - depth[a]);
      const { state } = this.cloud;
      const radius = (span / 500) * Math.min(Math.max(150 / Math.sqrt(xs.length), 1.8), 5) * Math.sqrt(this.view.zoom);
      const some = this.active !== null;
      for (const i of this.order) {
        if (some && state[i] === this.active) continue;
        const near = Math.min(Math.max((1.4 - depth[i]) / 2.8, 0), 1);
        this.dot(i, radius, some ? 0.1 : 0.4 + 0.45 * near);
      }
      if (!some) return;
      const { context: pen } = this;
      pen.strokeStyle = this.colour("--ink");
      for (const i of this.order) {
        if (state[i] !== this.active) continue;
        this.dot(i, i === this.point ? radius * 2.2 : radius * 1.4, 1);
        pen.lineWidth = i === this.point ? 2 : 0.6;
        pen.stroke();
      }
    }

    dot(i, radius, alpha) {
      const { context: pen } = this;
      const [across, down, , size] = this.screen;
      pen.globalAlpha = alpha;
      pen.fillStyle = this.data.colours[this.cloud.state[i]];
      pen.beginPath();
      pen.arc(across[i], down[i], radius * size[i], 0, 2 * Math.PI);
      pen.fill();
    }

    // -- pointer and keys --------------------------------------------------------------------------------

    listenToCanvas() {
      const { canvas } = this;
      let [held, moved] = [null, 0];
      canvas.addEventListener("pointerdown", (event) => {
        [held, moved] = [[event.clientX, event.clientY], 0];
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        if (!held) return this.hover(event);
        const step = [event.clientX - held[0], event.clientY - held[1]];
        held = [event.clientX, event.clientY];
        moved += Math.hypot(...step);
        if (moved > 3) this.rotate(step[0] * 0.009, step[1] * 0.009);
      });
      canvas.addEventListener("pointerup", (event) => {
        if (held && moved <= 3) {
          this.hover(event);
          this.keep(this.active === this.pinned ? null : this.active);
        }
        held = null;
      });
      canvas.addEventListener("pointercancel", () => (held = null));
      canvas.addEventListener("pointerleave", () => {
        this.point = null;
        if (!held) this.mark(this.pinned);
      });
      canvas.addEventListener("keydown", (event) => this.key(event));
    }

    rotate(right, down) {
      if (this.turning) this.turn(false);
      this.view.yaw += right;
      this.view.pitch = Math.min(Math.max(this.view.pitch + down, -Math.PI / 2), Math.PI / 2);
      this.draw();
    }

    /** Marks the state of the history nearest to the pointer, if one is near. */
    hover(event) {
      const frame = this.canvas.getBoundingClientRect();
      const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
      const [across, down] = this.screen;
      let [best, found] = [12 ** 2, null];
      for (const i of this.order) {
        const distance = (across[i] - x) ** 2 + (down[i] - y) ** 2;
        if (distance <= best) [best, found] = [distance, i];
      }
      this.point = found;
      this.mark(found === null ? this.pinned : this.cloud.state[found]);
    }

    key(event) {
      const step = STEPS[event.key];
      const zoom = { "+": 1.15, "=": 1.15, "-": 1 / 1.15, _: 1 / 1.15 }[event.key];
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (step) this.rotate(step[1] * 0.12, step[0] * 0.12);
      else if (zoom) this.view.zoom = Math.min(Math.max(this.view.zoom * zoom, 0.5), 4);
      else if (event.key === "Home") this.reset();
      else if (event.key === "Escape") this.keep(null);
      else return;
      event.preventDefault();
      this.draw();
    }

    listenToMap() {
      const { map } = this;
      const at = (event) => map.find(...pointer(map, event));
      for (const name of ["pointermove", "pointerdown"]) {
        map.svg.addEventListener(name, (event) => this.mark(at(event) ?? this.pinned));
      }
      map.svg.addEventListener("pointerleave", (event) => {
        if (event.pointerType !== "touch") this.mark(this.pinned); // a finger leaves before it clicks
      });
      map.svg.addEventListener("click", () => this.keep(this.active === this.pinned ? null : this.active));
      map.svg.addEventListener("keydown", (event) => {
        const step = STEPS[event.key];
        if (step) this.mark(this.active === null ? 0 : map.next(this.active, step));
        else if (event.key === "Enter" || event.key === " ") this.keep(this.active);
        else if (event.key === "Escape") this.keep(null);
        else return;
        event.preventDefault();
      });
    }

    keep(state) {
      this.pinned = state;
      this.mark(state);
    }

    mark(state) {
      if (state === null || (this.point !== null && this.cloud.state[this.point] !== state)) this.point = null;
      this.active = state;
      this.map.mark(state);
      this.tell(state);
      this.draw();
    }

    tell(state) {
      this.readout.replaceChildren();
      if (state === null) {
        html("span", {}, this.readout, "Hover over the map or the cloud to see the histories that end in a state.");
        return;
      }
      const chip = html("span", {}, this.readout);
      html("i", {}, chip).style.background = this.data.colours[state];
      html("b", {}, chip, `State ${state}`);
      const [row, column] = this.data.positions[state];
      const count = this.cloud.state.filter((other) => other === state).length;
      const items = [["row", row], ["column", column], ["histories that end here", count]];
      if (this.point !== null) items.push(["features", this.valuesOf(this.point)]);
      for (const [name, value] of items) html("b", {}, html("span", {}, this.readout, `${name} `), String(value));
      if (this.pinned === state) html("span", {}, this.readout, "kept · Esc lets go");
    }

    valuesOf(point) {
      const { values, state } = this.cloud;
      const shown = this.axes.filter((feature) => feature !== null);
      return shown.map((feature) => format(values[feature * state.length + point])).join(", ");
    }
  }

  document.querySelectorAll("figure.cloud").forEach((figure) => new Cloud(figure));
})();
