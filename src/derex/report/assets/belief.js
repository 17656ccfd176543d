// Episodes that play: what the agent sees, beliefs about its place, and how much they give to the true state.
"use strict";

(() => {
  const { svg, html, format, linear, axes, colourAt, options, panel, worldMap, moveMarks, pointer, decode } = derexPlot;
  const { asPicture, dark, still } = derexPlot;
  const TICKS = [0, 0.05, 0.2, 0.5, 1];
  const SIZE = 260; // of a map, in its own units
  const HEIGHT = 190; // of the curves

  /** The probability that a level stands for: levels are round(255 √p). */
  const probability = (level) => (level / 255) ** 2;

  class Belief {
    constructor(figure) {
      this.data = JSON.parse(figure.querySelector("script").textContent);
      this.title = figure.dataset.title;
      this.n = this.data.positions.length;
      this.speed = still.matches ? 4 : 10; // steps a second
      [this.t, this.playing, this.ring, this.cell] = [0, false, true, null];
      this.build(figure.querySelector(".ex-root"));
      this.recolour();
      this.choose(0);
      dark.addEventListener("change", () => {
        this.recolour();
        this.draw();
      });
      new ResizeObserver(() => requestAnimationFrame(() => this.drawCurves())).observe(this.curves.root);
    }

    get last() {
      return this.track.state.length - 1;
    }

    // -- controls and panels -----------------------------------------------------------------------------

    build(root) {
      root.replaceChildren();
      const controls = html("div", { class: "ex-controls" }, root);
      const tracks = this.data.tracks.map(({ title }, i) => ({ value: i, text: title }));
      options(controls, "Episode", tracks, 0, (value) => this.choose(value));
      const speeds = [4, 10, 25].map((value) => ({ value, text: String(value) }));
      options(controls, "Steps a second", speeds, this.speed, (value) => (this.speed = value));
      const label = html("label", {}, html("div", { class: "ex-inline" }, controls));
      const box = html("input", { type: "checkbox" }, label);
      box.checked = true;
      label.append("ring at the true state");
      box.addEventListener("change", () => {
        this.ring = box.checked;
        this.draw();
      });
      this.buildPlayer(root);
      const about = `${this.title}: frames and beliefs. Space plays and pauses, left and right arrows step, Home and End go to the ends.`;
      this.stage = html("div", { class: "be-stage", tabindex: 0, role: "group", "aria-label": about }, root);
      this.buildKey(root);
      this.curves = panel(root, "Probability of the true state", "", 800, HEIGHT);
      asPicture(this.curves);
      this.curves.axes = svg("g", {}, this.curves.svg);
      this.curves.lines = svg("g", {}, this.curves.svg);
      this.curves.cursor = svg("line", { class: "be-cursor" }, this.curves.svg);
      for (const element of [this.stage, this.play, this.slider]) element.addEventListener("keydown", (event) => this.key(event));
      this.listenToCurves();
    }

    buildPlayer(root) {
      const player = html("div", { class: "be-player" }, root);
      this.play = html("button", { type: "button", class: "ex-button" }, player);
      this.play.addEventListener("click", () => this.run(!this.playing));
      this.slider = html("input", { type: "range", min: 0, step: 1, "aria-label": "Time step" }, player);
      this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
      this.output = html("output", {}, player);
    }

    buildKey(root) {
      const key = html("div", { class: "be-key" }, root);
      this.bar = html("div", { "aria-hidden": "true" }, key);
      const ticks = html("div", { class: "be-ticks" }, key);
      for (const tick of TICKS) html("span", {}, ticks, String(tick)).style.left = `${100 * Math.sqrt(tick)}%`;
      html("span", {}, key, "probability of the state");
    }

    /** Shows another episode, at the same time where it is long enough. */
    choose(number) {
      this.track = this.data.tracks[number];
      for (const belief of this.track.beliefs) belief.values ??= decode(belief.levels, Uint8Array);
      this.stage.replaceChildren();
      this.buildFrame();
      this.maps = this.track.beliefs.map((belief) => this.buildMap(belief));
      this.slider.max = this.last;
      this.run(false);
      this.go(this.t);
      this.drawCurves();
    }

    buildFrame() {
      const root = html("div", { class: "ex-panel" }, this.stage);
      html("h3", {}, root, "Observation");
      this.note = html("p", {}, root);
      const [height, width] = this.track.size;
      this.picture = html("canvas", { class: "be-frame", width, height, role: "img", "aria-label": "What the agent sees" }, root);
      this.sprite = new Image();
      this.sprite.addEventListener("load", () => this.drawFrame());
      this.sprite.src = this.track.sprite;
    }

    buildMap({ label, colour }) {
      const map = worldMap(this.stage, "", `Belief: ${label}`, this.data, SIZE);
      asPicture(map);
      const name = map.root.querySelector("h3");
      html("i", {}, name).style.background = colour;
      name.append(label);
      map.cells.forEach((cell) => cell.setAttribute("class", "be-floor"));
      const ring = (style) => svg("circle", { r: 0.46 * map.cell, class: style }, map.svg);
      map.ring = [ring("ex-mark-halo"), ring("ex-mark")];
      map.svg.addEventListener("pointermove", (event) => this.hover(map.find(...pointer(map, event))));
      map.svg.addEventListener("pointerleave", () => this.hover(null));
      return map;
    }

    // -- time --------------------------------------------------------------------------------------------

    go(t) {
      this.t = Math.min(Math.max(t, 0), this.last);
      this.slider.value = this.t;
      this.draw();
    }

    /** Plays or pauses; at the end it plays from the beginning. */
    run(on) {
      this.playing = on;
      this.play.textContent = on ? "❚❚ Pause" : "▶ Play";
      this.output.setAttribute("aria-live", on ? "off" : "polite");
      clearTimeout(this.timer);
      if (!on) return;
      if (this.t === this.last) this.go(0);
      const step = () => {
        this.go(this.t + 1);
        if (this.t === this.last) this.run(false);
        else this.timer = setTimeout(step, 1000 / this.speed);
      };
      this.timer = setTimeout(step, 1000 / this.speed);
    }

    key(event) {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: -25, PageUp: 25, Home: -this.last, End: this.last }[event.key];
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === " " && event.target !== this.play) this.run(!this.playing);
      else if (step && event.target !== this.slider) this.pause(this.t + step);
      else return; // the button and the slider answer to their own keys
      event.preventDefault();
    }

    pause(t) {
      this.run(false);
      this.go(t);
    }

    // -- drawing -----------------------------------------------------------------------------------------

    /** The colours of all levels, for the page's theme. */
    recolour() {
      const stops = this.data.stops[dark.matches ? "dark" : "light"];
      this.colours = [...Array(256).keys()].map((level) => colourAt(stops, level / 255));
      this.bar.style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
    }

    draw() {
      const { t, last, track } = this;
      const [row, column] = this.data.positions[track.state[t]];
      this.output.textContent = `t = ${t} of ${last}`;
      this.note.textContent = this.ring ? `truly at row ${row}, column ${column}` : "";
      this.drawFrame();
      this.maps.forEach((map, i) => this.drawMap(map, track.beliefs[i]));
      this.slider.setAttribute("aria-valuetext", `step ${t}: ${this.maps.map((map) => map.said).join("; ")}`);
      this.drawCursor();
    }

    drawFrame() {
      const [height, width] = this.track.size;
      const number = this.track.frame[this.t];
      const [x, y] = [number % this.track.columns, Math.floor(number / this.track.columns)];
      if (!this.sprite.complete) return;
      this.picture.getContext("2d").drawImage(this.sprite, x * width, y * height, width, height, 0, 0, width, height);
    }

    drawMap(map, { label, values }) {
      const levels = values.subarray(this.t * this.n, (this.t + 1) * this.n);
      map.cells.forEach((cell, i) => cell.setAttribute("fill", this.colours[levels[i]]));
      const state = this.track.state[this.t];
      const centre = this.data.positions[state].map((part) => (part + 0.5) * map.cell - 0.35);
      moveMarks(map.ring, this.ring ? centre : null, ["cy", "cx"]);
      map.mark(this.cell);
      const shown = this.cell ?? state;
      const [row, column] = this.data.positions[shown];
      const where = this.cell === null ? "at the true state" : `at row ${row}, column ${column}`;
      map.note.textContent = this.ring || this.cell !== null ? `${format(probability(levels[shown]))} ${where}` : "";
      map.said = `${label} gives ${format(probability(levels[state]))} to the true state`;
    }

    hover(cell) {
      if (cell === this.cell) return;
      this.cell = cell;
      this.draw();
    }

    drawCurves() {
      const width = this.curves.root.clientWidth;
      if (!width) return;
      const { svg: root, lines } = this.curves;
      this.curves.width = width;
      root.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      root.setAttribute("aria-label", `Probability of the true state along the episode ${this.track.title}`);
      const box = { left: 46, right: width - 10, top: 10, bottom: HEIGHT - 42 };
      this.x = linear([0, Math.max(this.last, 1)], [box.left, box.right], 0);
      const y = linear([0, 1], [box.bottom, box.top], 0.02);
      axes(this.curves.axes, box, this.x, y, "time step t", "");
      lines.replaceChildren();
      for (const { values, colour } of [...this.track.beliefs].reverse()) { // the first lies on top
        const heights = this.track.state.map((state, t) => y(probability(values[t * this.n + state])));
        const points = heights.map((height, t) => `${this.x(t).toFixed(1)} ${height.toFixed(1)}`);
        svg("path", { d: `M${points.join("L")}`, class: "be-line", stroke: colour }, lines);
      }
      for (const [name, value] of [["y1", box.top], ["y2", box.bottom]]) this.curves.cursor.setAttribute(name, value);
      this.drawCursor();
    }

    drawCursor() {
      if (!this.x) return;
      for (const name of ["x1", "x2"]) this.curves.cursor.setAttribute(name, this.x(this.t));
    }

    /** A click or a drag on the curves goes to that time. */
    listenToCurves() {
      const root = this.curves.svg;
      root.style.cursor = "crosshair";
      const seek = (event) => {
        const [x] = pointer(this.curves, event);
        this.pause(Math.round((x - this.x(0)) / (this.x(1) - this.x(0))));
      };
      root.addEventListener("pointerdown", (event) => {
        root.setPointerCapture(event.pointerId);
        seek(event);
      });
      root.addEventListener("pointermove", (event) => event.buttons && seek(event));
    }
  }

  document.querySelectorAll("figure.belief").forEach((figure) => new Belief(figure));
})();
