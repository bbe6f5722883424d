// The interactive view of a path: picture, time slider and overlays.

import { drawCurves, readInk } from "./line_plot.js";
import { drawParticles, drawPotential, drawVelocity } from "./overlays.js";
import { fitCanvas } from "./frames.js";
import { drawHeatmap } from "./heatmap.js";
import { Player } from "./player.js";

const OVERLAYS = { particles: "Particles", velocity: "Velocity", potential: "Potential" };
const LAYERS = { particles: "particles", velocity: "particles", potential: "potential" };
const SIDE = 720; // pixels of the longer side

export class View {
  // root: parent element; colours: 256 × 3 bytes; requestLayers: called if layers are missing.
  constructor(root, colours, requestLayers = () => {}) {
    this.colours = colours;
    this.requestLayers = requestLayers;
    this.frames = null;
    this.projections = [];
    this.layers = {};
    this.player = new Player(() => this.draw());
    this.build(root);
  }

  // layers: particles and potential, null if unavailable, undefined if not loaded yet;
  // missing: messages on unavailable layers; projections: further frames of a path in 3D.
  show(frames, layers = {}, missing = {}, projections = []) {
    this.frames = frames;
    this.layers = layers;
    this.showProjections(projections);
    const isCurve = frames.shape.length === 1;
    this.root.classList.toggle("curve", isCurve);
    for (const name of Object.keys(OVERLAYS)) {
      this.boxes[name].disabled = isCurve || layers[LAYERS[name]] === null;
      this.boxes[name].parentElement.title = missing[LAYERS[name]] ?? "";
    }
    for (const canvas of [this.canvas, this.blendCanvas]) {
      fitCanvas(canvas, frames, SIDE, [frames, ...projections]);
    }
    this.draw();
    this.loadLayers();
  }

  // Add figures of the projections of a path in 3D, all on the scale of the first one.
  showProjections(projections) {
    for (const { figure, blendFigure } of this.projections) {
      figure.remove();
      blendFigure.remove();
    }
    this.caption.textContent = this.frames.label;
    this.root.classList.toggle("volume", projections.length > 0);
    this.projections = projections.map((frames) => {
      const [canvas, blendCanvas] = [createCanvas(frames.label), createCanvas("Linear blend")];
      for (const one of [canvas, blendCanvas]) {
        fitCanvas(one, frames, SIDE, [this.frames, ...projections]);
      }
      const figure = createFigure(canvas, frames.label);
      const blendFigure = createFigure(blendCanvas, "Linear blend");
      this.blendFigure.before(figure);
      this.pictures.append(blendFigure);
      return { frames, canvas, blendCanvas, figure, blendFigure };
    });
  }

  // Remove the path, whose ends have changed.
  clear() {
    [this.frames, this.layers] = [null, {}];
    this.draw();
  }

  // Request layers that are switched on and not loaded yet.
  loadLayers() {
    const unloaded = Object.keys(OVERLAYS).filter(
      (name) => this.boxes[name].checked && this.layers[LAYERS[name]] === undefined,
    );
    if (unloaded.length && this.frames?.shape.length === 2) this.requestLayers();
  }

  draw() {
    const { t, playing } = this.player;
    this.slider.value = t;
    this.slider.setAttribute("aria-valuetext", `t = ${t.toFixed(2)}`);
    this.clock.textContent = `t = ${t.toFixed(2)}`;
    this.start.textContent = playing ? "❚❚" : "▶";
    this.start.setAttribute("aria-label", playing ? "Pause" : "Play");
    this.root.classList.toggle("empty", !this.frames);
    if (!this.frames) {
      const { width, height } = this.canvas;
      this.canvas.getContext("2d").clearRect(0, 0, width, height);
      this.blendFigure.hidden = true;
      return;
    }
    const showBlend = this.compare.checked;
    if (this.frames.shape.length === 1) this.drawCurvesAt(t, showBlend);
    else this.drawHeatmapAt(t, showBlend);
    for (const { frames, canvas, blendCanvas, blendFigure } of this.projections) {
      drawHeatmap(canvas.getContext("2d"), frames.interpolate(t), frames.shape, this.colours);
      blendFigure.hidden = !showBlend;
      if (!showBlend) continue;
      drawHeatmap(blendCanvas.getContext("2d"), frames.blend(t), frames.shape, this.colours);
    }
    this.blendFigure.hidden = !showBlend || this.frames.shape.length === 1;
  }

  drawCurvesAt(t, showBlend) {
    const context = this.canvas.getContext("2d");
    drawCurves(context, this.frames, t, showBlend, this.colours, readInk(this.root));
  }

  drawHeatmapAt(t, showBlend) {
    const { shape } = this.frames;
    const context = this.canvas.getContext("2d");
    drawHeatmap(context, this.frames.interpolate(t), shape, this.colours);
    const { particles, potential } = this.layers;
    if (this.boxes.potential.checked && potential) drawPotential(context, potential, t);
    if (this.boxes.velocity.checked && particles) drawVelocity(context, particles, t);
    if (this.boxes.particles.checked && particles) drawParticles(context, particles, t);
    if (!showBlend) return;
    drawHeatmap(this.blendCanvas.getContext("2d"), this.frames.blend(t), shape, this.colours);
  }

  build(root) {
    this.root = root;
    root.classList.add("view");
    this.canvas = createCanvas("Density of the path at the selected time");
    this.blendCanvas = createCanvas("Linear blend of source and target at the same time");
    this.blendFigure = createFigure(this.blendCanvas, "Linear blend");
    this.blendFigure.hidden = true;
    this.pictures = createElement("div", { className: "pictures" });
    const figure = createFigure(this.canvas, "");
    this.caption = createElement("figcaption");
    figure.append(this.caption);
    this.pictures.append(figure, this.blendFigure);
    root.append(this.pictures, this.buildPlayback(), this.buildOptions());
    this.draw();
  }

  buildPlayback() {
    const bar = createElement("div", { className: "playback" });
    this.start = createButton("▶", "Play", () => this.player.toggle());
    this.start.classList.add("play");
    const back = createButton("‹", "Step back", () => this.player.step(-1));
    const forward = createButton("›", "Step forward", () => this.player.step(1));
    this.slider = createElement("input", { type: "range", min: 0, max: 1, step: 0.01, value: 0 });
    this.slider.setAttribute("aria-label", "Time");
    this.slider.addEventListener("input", () => {
      const t = Number(this.slider.value);
      this.player.pause();
      this.player.seek(t);
    });
    this.clock = createElement("output", { className: "clock" });
    bar.append(this.start, back, this.slider, forward, this.clock);
    return bar;
  }

  buildOptions() {
    const bar = createElement("div", { className: "options" });
    const loop = createCheckbox("Loop", true, (on) => {
      this.player.loop = on;
    });
    const compare = createCheckbox("Compare with a linear blend", false, () => this.draw());
    this.compare = compare.querySelector("input");
    this.boxes = {};
    bar.append(loop, compare);
    for (const [name, label] of Object.entries(OVERLAYS)) {
      const box = createCheckbox(label, false, () => {
        this.draw();
        this.loadLayers();
      });
      box.classList.add("overlay");
      this.boxes[name] = box.querySelector("input");
      bar.append(box);
    }
    return bar;
  }
}

export function createElement(tag, properties = {}) {
  return Object.assign(document.createElement(tag), properties);
}

export function createButton(text, label, onClick) {
  const button = createElement("button", { type: "button", textContent: text });
  if (label !== text) {
    button.setAttribute("aria-label", label);
    button.title = label;
  }
  button.addEventListener("click", onClick);
  return button;
}

function createCheckbox(text, checked, onChange) {
  const label = createElement("label");
  const input = createElement("input", { type: "checkbox", checked });
  input.addEventListener("change", () => onChange(input.checked));
  label.append(input, ` ${text}`);
  return label;
}

function createCanvas(label) {
  const canvas = createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  return canvas;
}

function createFigure(canvas, caption) {
  const figure = createElement("figure");
  figure.append(canvas);
  if (caption) figure.append(createElement("figcaption", { textContent: caption }));
  return figure;
}

// Pass keys of the page to `target.press`, unless the focused element uses them.
export function bindKeys(target) {
  document.addEventListener("keydown", (event) => {
    const usesKeys = event.target.closest?.("input, select, textarea, button, summary, [data-keys]");
    if (!usesKeys && !event.ctrlKey && !event.metaKey && !event.altKey) target.press(event);
  });
}
