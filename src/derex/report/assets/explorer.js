// The explorer: map, representation, spectrum and bonus of one experience, linked state by state.
"use strict";

(() => {
  const { svg, html, format, extent, finite, linear, logOrLinear, axes, colourAt, panel, options } = derexPlot;
  const { worldMap, moveMarks, pointer, asPicture, still, STEPS } = derexPlot;
  const SIZE = 400;
  const BOX = { left: 50, right: 412, top: 10, bottom: 372 };
  const LOW_BOX = { left: 50, right: 412, top: 10, bottom: 250 };
  const KEYS = "Arrow keys move between states, Enter keeps one, Escape lets go.";

  class Explorer {
    constructor(figure) {
      this.data = JSON.parse(figure.querySelector("script").textContent);
      this.title = figure.dataset.title;
      this.n = this.data.d.length;
      this.state = { view: 0, colouring: "reference", log: false, features: [0, 1] };
      this.active = null;
      this.pinned = null;
      this.build(figure.querySelector(".ex-root"));
      this.redraw(false);
    }

    get view() {
      return this.data.views[this.state.view];
    }

    build(root) {
      root.replaceChildren();
      this.controls = html("div", { class: "ex-controls" }, root);
      this.buildControls();
      this.readout = html("div", { class: "ex-readout", role: "status", "aria-live": "polite" }, root);
      const grid = html("div", { class: "ex-grid" }, root);
      this.buildMap(grid);
      const where = `of ${this.title}. ${KEYS}`;
      this.scatter = panel(grid, "Representation", `Representation ${where}`, 420, 412);
      this.layers(this.scatter, true);
      this.spectrum = panel(grid, "Singular values", `Singular values of ${this.title}`, 420, 290);
      asPicture(this.spectrum);
      this.layers(this.spectrum, false);
      this.rarity = panel(grid, "Bonus against visitation", `Bonus against visitation ${where}`, 420, 290);
      this.layers(this.rarity, false);
      this.buildLegend();
      for (const plot of [this.map, this.scatter, this.rarity]) this.listen(plot);
    }

    buildControls() {
      const views = this.data.views.map(({ label, colour }, i) => ({ value: i, text: label, colour }));
      options(this.controls, "Decomposition", views, 0, (value) => this.change({ view: value }, true));
      const colourings = [
        { value: "reference", text: "Reference colours" },
        { value: "visitation", text: "Visitation" },
        { value: "bonus", text: "Bonus" },
      ];
      options(this.controls, "Map shows", colourings, "reference", (value) => this.change({ colouring: value }));
      const inline = html("div", { class: "ex-inline" }, this.controls);
      const label = html("label", {}, inline);
      const box = html("input", { type: "checkbox" }, label);
      label.append("log colours");
      box.addEventListener("change", () => this.change({ log: box.checked }));
      const most = Math.max(...this.data.views.map((view) => view.features.length));
      if (most > 2) this.buildFeatures(most);
    }

    buildFeatures(most) {
      const inline = html("div", { class: "ex-inline" }, this.controls);
      this.selects = [0, 1].map((axis) => {
        const label = html("label", {}, inline, axis ? "against" : "Features");
        const select = html("select", { "aria-label": axis ? "Vertical feature" : "Horizontal feature" }, label);
        for (let i = 0; i < most; i++) html("option", { value: i }, select, `f${i + 1}`);
        select.value = axis;
        select.addEventListener("change", () => {
          const features = [...this.state.features];
          features[axis] = Number(select.value);
          this.change({ features }, true);
        });
        return select;
      });
    }

    buildMap(grid) {
      const label = `Map ${this.data.name} of ${this.n} states. ${KEYS}`;
      this.map = worldMap(grid, "Map", label, this.data, SIZE);
      this.key = html("div", { class: "ex-key" }, this.map.root);
    }

    /** Groups of a plot, from back to front. */
    layers(plot, withEdges) {
      plot.axes = svg("g", {}, plot.svg);
      plot.back = svg("g", {}, plot.svg);
      if (withEdges) plot.edges = svg("path", { class: "ex-edges" }, plot.svg);
      const points = svg("g", {}, plot.svg);
      if (plot === this.spectrum) return;
      const radius = Math.min(Math.max(52 / Math.sqrt(this.n), 2.4), 5);
      plot.points = this.data.colours.map((colour, i) => {
        const hollow = !(this.data.d[i] > 0);
        const style = hollow ? { fill: "none", stroke: colour, "stroke-width": 1.4 } : { fill: colour };
        return svg("circle", { r: radius, visibility: "hidden", ...style }, points);
      });
      plot.places = this.data.colours.map(() => null);
      plot.marks = ["ex-mark-halo", "ex-mark"].map((name) =>
        svg("circle", { r: radius + 4, class: name, visibility: "hidden" }, plot.svg));
    }

    buildLegend() {
      const legend = html("div", { class: "ex-legend" }, this.spectrum.root);
      for (const { label, colour } of this.data.views) {
        const item = html("span", {}, legend);
        html("i", {}, item).style.background = colour;
        item.append(label);
      }
    }

    change(values, moving = false) {
      Object.assign(this.state, values);
      this.redraw(moving && !still.matches);
    }

    redraw(moving) {
      this.drawMap();
      this.drawScatter(moving);
      this.drawSpectrum();
      this.drawRarity(moving);
      this.mark(this.active);
    }

    drawMap() {
      const { colouring, log } = this.state;
      const names = { reference: "Each state has its own colour, used in every panel", visitation: "Visitation of the states", bonus: `Bonus · ${this.view.label}` };
      this.map.note.textContent = names[colouring];
      this.key.replaceChildren();
      if (colouring === "reference") {
        this.map.cells.forEach((cell, i) => cell.setAttribute("fill", this.data.colours[i]));
        return;
      }
      const raw = colouring === "bonus" ? this.view.bonus : this.data.d;
      const values = log ? raw.map((v) => (v > 0 ? Math.log(v) : null)) : raw;
      const [low, high] = extent(values);
      const stops = this.data.scales[colouring];
      this.map.cells.forEach((cell, i) => {
        const known = values[i] !== null;
        const place = high > low ? (values[i] - low) / (high - low) : 0.5;
        cell.setAttribute("fill", known ? colourAt(stops, place) : "var(--hatch)");
        cell.setAttribute("fill-opacity", known ? 1 : 0.25);
      });
      const ends = log ? [low, high].map(Math.exp) : [low, high];
      html("span", {}, this.key, format(ends[0]));
      html("div", { "aria-hidden": "true" }, this.key).style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
      html("span", {}, this.key, format(ends[1]));
    }

    drawScatter(moving) {
      const { features } = this.view;
      const zeros = this.data.d.map(() => 0);
      const [first, second] = this.state.features.map((f) => Math.min(f, Math.max(features.length - 1, 1)));
      const [xs, ys] = [first, second].map((f) => features[f] || zeros);
      const x = linear(extent(xs), [BOX.left, BOX.right]);
      const y = linear(extent(ys), [BOX.bottom, BOX.top]);
      axes(this.scatter.axes, BOX, x, y, `feature ${first + 1}`, features.length > 1 ? `feature ${second + 1}` : "");
      const which = features.length > 1 ? `features ${first + 1} and ${second + 1}` : "feature 1";
      this.scatter.note.textContent = `${this.view.label} · ${which} of ${this.view.singular_values.length}`;
      this.move(this.scatter, xs.map((v, i) => [x(v), y(ys[i])]), moving);
    }

    drawSpectrum() {
      const { views } = this.data;
      const own = extent(this.view.singular_values);
      const all = extent(views.flatMap((view) => view.singular_values));
      const high = own[1] > 0.4 * all[1] ? all[1] : own[1];
      const most = Math.max(...views.map((view) => view.singular_values.length));
      const x = linear([1, Math.max(most, 2)], [LOW_BOX.left, LOW_BOX.right]);
      const y = linear([Math.min(0, own[0]), high], [LOW_BOX.bottom, LOW_BOX.top], 0.03);
      const whole = x.ticks;
      x.ticks = () => whole().filter((tick) => Number.isInteger(tick) && tick > 0);
      axes(this.spectrum.axes, LOW_BOX, x, y, "index", "σ");
      this.spectrum.back.replaceChildren();
      const order = [...views.keys()].sort((a, b) => (a === this.state.view) - (b === this.state.view));
      for (const i of order) this.spectrumLine(views[i], x, y, i === this.state.view);
      const sizes = finite(this.view.singular_values);
      this.spectrum.note.textContent = sizes.length
        ? `${this.view.label} · σ from ${format(sizes[0])} to ${format(sizes[sizes.length - 1])}` : this.view.label;
    }

    spectrumLine(view, x, y, shown) {
      const group = svg("g", { opacity: shown ? 1 : 0.38 }, this.spectrum.back);
      const inside = (place) => place !== null && place >= LOW_BOX.top - 6 && place <= LOW_BOX.bottom + 6;
      let path = "";
      view.singular_values.forEach((value, i) => {
        const place = y(value);
        if (!inside(place)) return;
        path += `${path && inside(y(view.singular_values[i - 1] ?? null)) ? "L" : "M"}${x(i + 1).toFixed(1)} ${place.toFixed(1)}`;
        if (!shown || view.singular_values.length > 80) return;
        const dot = svg("circle", { cx: x(i + 1), cy: place, r: 3.4, fill: view.colour }, group);
        svg("title", {}, dot).textContent = `σ${i + 1} = ${format(value)}`;
      });
      svg("path", { d: path, fill: "none", stroke: view.colour, "stroke-width": shown ? 2 : 1.4 }, group);
    }

    drawRarity(moving) {
      const { d } = this.data;
      const { bonus, spearman } = this.view;
      const shown = d.map((v, i) => (v > 0 && bonus[i] !== null ? i : null)).filter((i) => i !== null);
      const x = logOrLinear(shown.map((i) => d[i]), [LOW_BOX.left, LOW_BOX.right]);
      const y = logOrLinear(shown.map((i) => bonus[i]), [LOW_BOX.bottom, LOW_BOX.top]);
      axes(this.rarity.axes, LOW_BOX, x, y, "visitation d", "bonus");
      const sign = spearman > 0 ? "+" : "";
      const rho = spearman === null ? "undefined" : sign + spearman.toFixed(2).replace("-", "−");
      this.rarity.note.textContent = `${this.view.label} · Spearman with 1/d: ${rho} · dashed ∝ 1/√d`;
      this.drawGuide(shown, x, y);
      const places = d.map((v, i) => (v > 0 && bonus[i] !== null ? [x(v), y(bonus[i])] : [null, null]));
      this.move(this.rarity, places, moving);
    }

    /** A dashed line bonus ∝ 1/√d, as of counts, through the middle of the points. */
    drawGuide(shown, x, y) {
      this.rarity.back.replaceChildren();
      const { d } = this.data;
      const levels = shown.map((i) => this.view.bonus[i] * Math.sqrt(d[i])).filter((v) => v > 0).sort((a, b) => a - b);
      if (levels.length < 2) return;
      const level = levels[Math.floor(levels.length / 2)];
      const [low, high] = extent(shown.map((i) => d[i]));
      const steps = [...Array(41).keys()].map((i) => low * (high / low) ** (i / 40));
      const path = steps.map((v) => [x(v), y(level / Math.sqrt(v))])
        .filter(([, py]) => py >= LOW_BOX.top && py <= LOW_BOX.bottom)
        .map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`);
      svg("path", { d: path.join(""), class: "ex-guide" }, this.rarity.back);
    }

    /** Puts points at their new places, gliding there if asked. */
    move(plot, targets, moving) {
      const known = ([px, py]) => px !== null && py !== null && Number.isFinite(px) && Number.isFinite(py);
      const goals = targets.map((target) => (known(target) ? target : null));
      const starts = goals.map((goal, i) => goal && (plot.places[i] || goal));
      cancelAnimationFrame(plot.frame);
      if (!moving || document.hidden) return this.place(plot, goals);
      const begin = performance.now();
      const step = (now) => {
        const part = Math.min(Math.max((now - begin) / 450, 0), 1);
        const eased = 1 - (1 - part) ** 3;
        const between = (i, axis) => starts[i][axis] + eased * (goals[i][axis] - starts[i][axis]);
        this.place(plot, goals.map((goal, i) => goal && [between(i, 0), between(i, 1)]));
        if (part < 1) plot.frame = requestAnimationFrame(step);
      };
      plot.frame = requestAnimationFrame(step);
    }

    place(plot, places) {
      plot.places = places;
      plot.points.forEach((point, i) => {
        point.setAttribute("visibility", places[i] ? "visible" : "hidden");
        if (!places[i]) return;
        point.setAttribute("cx", places[i][0].toFixed(2));
        point.setAttribute("cy", places[i][1].toFixed(2));
      });
      if (plot.edges) {
        const lines = this.data.edges.filter(([a, b]) => places[a] && places[b]);
        const text = (i) => `${places[i][0].toFixed(1)} ${places[i][1].toFixed(1)}`;
        plot.edges.setAttribute("d", lines.map(([a, b]) => `M${text(a)}L${text(b)}`).join(""));
      }
      this.markIn(plot, this.active);
    }

    // -- states under the pointer or the keys ----------------------------------------------------------

    listen(plot) {
      const at = (event) => this.find(plot, ...pointer(plot, event));
      for (const name of ["pointermove", "pointerdown"]) {
        plot.svg.addEventListener(name, (event) => this.mark(at(event) ?? this.pinned));
      }
      plot.svg.addEventListener("pointerleave", (event) => {
        if (event.pointerType !== "touch") this.mark(this.pinned); // a finger leaves before it clicks
      });
      plot.svg.addEventListener("click", () => {
        this.pinned = this.active === this.pinned ? null : this.active;
        this.mark(this.active);
      });
      plot.svg.addEventListener("keydown", (event) => this.key_(event));
    }

    find(plot, x, y) {
      if (plot === this.map) return this.map.find(x, y);
      let [best, found] = [24 ** 2, null];
      plot.places.forEach((place, i) => {
        const distance = place ? (place[0] - x) ** 2 + (place[1] - y) ** 2 : Infinity;
        if (distance < best) [best, found] = [distance, i];
      });
      return found;
    }

    key_(event) {
      const step = STEPS[event.key];
      if (step) this.mark(this.active === null ? 0 : this.map.next(this.active, step));
      else if (event.key === "Enter" || event.key === " ") this.tell((this.pinned = this.active));
      else if (event.key === "Escape") this.mark((this.pinned = null));
      else return;
      event.preventDefault();
    }

    mark(i) {
      this.active = i;
      for (const plot of [this.map, this.scatter, this.rarity]) this.markIn(plot, i);
      this.tell(i);
    }

    markIn(plot, i) {
      if (plot === this.map) this.map.mark(i);
      else moveMarks(plot.marks, i === null ? null : plot.places[i], ["cx", "cy"]);
    }

    tell(i) {
      this.readout.replaceChildren();
      if (i === null) {
        html("span", {}, this.readout, "Hover over a state to find it in every panel.");
        return;
      }
      const [row, column] = this.data.positions[i];
      const chip = html("span", {}, this.readout);
      html("i", {}, chip).style.background = this.data.colours[i];
      html("b", {}, chip, `State ${i}`);
      for (const [name, value] of [
        ["row", row], ["column", column],
        ["visitation", this.data.d[i] > 0 ? format(this.data.d[i]) : "never"],
        ["bonus", format(this.view.bonus[i])],
      ]) {
        const item = html("span", {}, this.readout, `${name} `);
        html("b", {}, item, String(value));
      }
      if (this.pinned === i) html("span", {}, this.readout, "kept · Esc lets go");
    }
  }

  document.querySelectorAll("figure.explorer").forEach((figure) => new Explorer(figure));
})();
