// A path that can be watched: the picture, time, and what lies over it.

import { drawCurves, inkOf } from "./curve.js";
import { drawParticles, drawPotential, drawVelocity } from "./overlays.js";
import { drawPicture } from "./picture.js";
import { Player } from "./player.js";

const OVERLAYS = { particles: "Particles", velocity: "Velocity", potential: "Potential" };
const NEEDS = { particles: "particles", velocity: "particles", potential: "potential" };
const SIDE = 720; // pixels of the longest side of a picture

export class View {
  // root: where it is built; colours: 256 × 3 bytes; wanted: called when overlays are asked for.
  constructor(root, colours, wanted = () => {}) {
    this.colours = colours;
    this.wanted = wanted;
    this.frames = null;
    this.layers = {};
    this.why = {};
    this.player = new Player(() => this.draw());
    this.build(root);
  }

  // frames: see frames.js; layers: particles and potential, each null or missing where unknown.
  show(frames, layers = {}, why = {}) {
    this.frames = frames;
    this.layers = layers;
    this.why = why;
    const flat = frames.shape.length === 1;
    this.root.classList.toggle("flat", flat);
    for (const name of Object.keys(OVERLAYS)) {
      this.boxes[name].disabled = flat || layers[NEEDS[name]] === null;
      this.boxes[name].parentElement.title = why[NEEDS[name]] ?? "";
    }
    const [rows, columns] = flat ? [10, 16] : frames.shape;
    const unit = SIDE / Math.max(rows, columns);
    for (const canvas of [this.canvas, this.other]) {
      [canvas.width, canvas.height] = [Math.round(unit * columns), Math.round(unit * rows)];
    }
    this.draw();
    this.ask();
  }

  // What is switched on and not known yet.
  ask() {
    const missing = Object.keys(OVERLAYS).filter(
      (name) => this.boxes[name].checked && this.layers[NEEDS[name]] === undefined,
    );
    if (missing.length && this.frames?.shape.length === 2) this.wanted();
  }

  draw() {
    const { t, playing } = this.player;
    this.slider.value = t;
    this.slider.setAttribute("aria-valuetext", `t = ${t.toFixed(2)}`);
    this.clock.textContent = `t = ${t.toFixed(2)}`;
    this.start.textContent = playing ? "❚❚" : "▶";
    this.start.setAttribute("aria-label", playing ? "Pause" : "Play");
    if (!this.frames) return;
    const compared = this.compare.checked;
    if (this.frames.shape.length === 1) this.drawFlat(t, compared);
    else this.drawPlane(t, compared);
    this.otherFigure.hidden = !compared || this.frames.shape.length === 1;
  }

  drawFlat(t, compared) {
    const context = this.canvas.getContext("2d");
    drawCurves(context, this.frames, t, compared, this.colours, inkOf(this.root));
  }

  drawPlane(t, compared) {
    const { shape } = this.frames;
    const context = this.canvas.getContext("2d");
    drawPicture(context, this.frames.at(t), shape, this.colours);
    const { particles, potential } = this.layers;
    if (this.boxes.potential.checked && potential) drawPotential(context, potential, t);
    if (this.boxes.velocity.checked && particles) drawVelocity(context, particles, t);
    if (this.boxes.particles.checked && particles) drawParticles(context, particles, t);
    if (!compared) return;
    drawPicture(this.other.getContext("2d"), this.frames.mixture(t), shape, this.colours);
  }

  build(root) {
    this.root = root;
    root.classList.add("view");
    this.canvas = canvasNamed("The path at the time of the slider");
    this.other = canvasNamed("The linear mixture at the same time");
    this.otherFigure = figureOf(this.other, "Fading instead: the linear mixture");
    this.otherFigure.hidden = true;
    const pictures = element("div", { className: "pictures" });
    pictures.append(figureOf(this.canvas, ""), this.otherFigure);
    root.append(pictures, this.transport(), this.choices());
    this.draw();
  }

  transport() {
    const bar = element("div", { className: "transport" });
    this.start = button("▶", "Play", () => this.player.toggle());
    this.start.classList.add("play");
    const back = button("‹", "One step back", () => this.player.step(-1));
    const on = button("›", "One step on", () => this.player.step(1));
    this.slider = element("input", { type: "range", min: 0, max: 1, step: 0.01, value: 0 });
    this.slider.setAttribute("aria-label", "Time");
    this.slider.addEventListener("input", () => {
      const t = Number(this.slider.value);
      this.player.pause();
      this.player.seek(t);
    });
    this.clock = element("output", { className: "clock" });
    bar.append(this.start, back, this.slider, on, this.clock);
    return bar;
  }

  choices() {
    const bar = element("div", { className: "choices" });
    const loop = checkbox("Loop", true, (on) => {
      this.player.loop = on;
    });
    const compare = checkbox("Compare with a fade", false, () => this.draw());
    this.compare = compare.querySelector("input");
    this.boxes = {};
    bar.append(loop, compare);
    for (const [name, label] of Object.entries(OVERLAYS)) {
      const box = checkbox(label, false, () => {
        this.draw();
        this.ask();
      });
      box.classList.add("overlay");
      this.boxes[name] = box.querySelector("input");
      bar.append(box);
    }
    return bar;
  }
}

export function element(tag, properties = {}) {
  return Object.assign(document.createElement(tag), properties);
}

export function button(text, label, pressed) {
  const made = element("button", { type: "button", textContent: text });
  if (label !== text) {
    made.setAttribute("aria-label", label);
    made.title = label;
  }
  made.addEventListener("click", pressed);
  return made;
}

function checkbox(text, checked, changed) {
  const label = element("label");
  const input = element("input", { type: "checkbox", checked });
  input.addEventListener("change", () => changed(input.checked));
  label.append(input, ` ${text}`);
  return label;
}

function canvasNamed(label) {
  const canvas = element("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  return canvas;
}

function figureOf(canvas, caption) {
  const figure = element("figure");
  figure.append(canvas);
  if (caption) figure.append(element("figcaption", { textContent: caption }));
  return figure;
}

// Space plays, arrows step, wherever the focus is, unless something there wants these keys.
export function listenToKeys(player) {
  document.addEventListener("keydown", (event) => {
    const taken = event.target.closest?.("input, select, textarea, button, summary, [data-keys]");
    if (taken || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = { " ": () => player.toggle(), ArrowLeft: () => player.step(-1) };
    action.ArrowRight = () => player.step(1);
    if (!action[event.key]) return;
    event.preventDefault();
    action[event.key]();
  });
}
