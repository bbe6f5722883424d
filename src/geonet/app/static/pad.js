// A canvas to draw on, with its tools; files can be dropped onto it.

import { drawCurve, inkOf } from "./curve.js";
import { drawPicture } from "./picture.js";
import { button, element } from "./view.js";
import { dab, stroke, trace } from "./brush.js";
import { FULL } from "./drawing.js";

const SIDE = 480; // pixels

export class Pad {
  // root: its section; title: above it; drawing: see drawing.js; dropped: called with a file.
  constructor(root, title, drawing, colours, dropped) {
    this.root = root;
    this.title = title;
    this.drawing = drawing;
    this.colours = colours;
    this.brush = { radius: 0.08, softness: 0.5, erases: false };
    this.last = null;
    this.cursor = null;
    this.canvas = element("canvas", { tabIndex: 0 });
    this.canvas.dataset.keys = "";
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute(
      "aria-label",
      `${title}. Draw with the pointer, or move with the arrow keys and paint with Space.`,
    );
    root.append(element("h2", { textContent: title }), this.canvas, this.tools());
    root.append(this.opener(dropped));
    this.listen();
    this.listenToFiles(dropped);
    this.draw();
  }

  get isFlat() {
    return this.drawing.shape.length === 1;
  }

  draw() {
    this.root.classList.toggle("flat", this.isFlat);
    [this.canvas.width, this.canvas.height] = [SIDE, this.isFlat ? (SIDE * 10) / 16 : SIDE];
    const context = this.canvas.getContext("2d");
    const levels = Float32Array.from(this.drawing.values, (value) => (255 * value) / FULL);
    if (this.isFlat) {
      const { curve, area } = inkOf(this.root);
      drawCurve(context, levels, this.canvas.height, curve, area);
    } else drawPicture(context, levels, this.drawing.shape, this.colours);
    if (this.cursor) this.drawCursor(context);
    this.undo.disabled = this.drawing.past.length === 0;
  }

  drawCursor(context) {
    const { width, height } = this.canvas;
    context.beginPath();
    const radius = Math.max(4, this.brush.radius * width);
    context.arc(this.cursor[1] * width, this.cursor[0] * height, radius, 0, 2 * Math.PI);
    context.strokeStyle = "#ffffff";
    context.lineWidth = 2;
    context.stroke();
  }

  tools() {
    const bar = element("div", { className: "tools" });
    this.paintButton = button("Brush", "Brush", () => this.choose(false));
    this.eraseButton = button("Eraser", "Eraser", () => this.choose(true));
    this.undo = button("Undo", "Undo", () => this.drawing.undo());
    const clear = button("Clear", "Clear", () => this.drawing.clear());
    const invert = button("Invert", "Invert", () => this.drawing.invert());
    bar.append(this.paintButton, this.eraseButton, this.undo, clear, invert);
    bar.append(this.slider("Size", 0.02, 0.3, "radius"));
    bar.append(this.slider("Softness", 0, 1, "softness"));
    this.choose(false);
    return bar;
  }

  slider(text, min, max, name) {
    const label = element("label", { textContent: text });
    const input = element("input", { type: "range", min, max, step: 0.01 });
    input.value = this.brush[name];
    input.addEventListener("input", () => {
      this.brush[name] = Number(input.value);
    });
    label.append(input);
    return label;
  }

  choose(erases) {
    this.brush.erases = erases;
    this.paintButton.setAttribute("aria-pressed", String(!erases));
    this.eraseButton.setAttribute("aria-pressed", String(erases));
  }

  // For those who cannot drop a file: the keyboard, and phones.
  opener(chosen) {
    const hint = element("p", { className: "hint", textContent: "Drop an image or .npy here, or " });
    const input = element("input", { type: "file", accept: "image/*,.npy,.npz,.csv" });
    input.setAttribute("aria-label", `${this.title}: open a file`);
    input.hidden = true;
    input.addEventListener("change", () => {
      if (input.files[0]) chosen(input.files[0]);
      input.value = ""; // the same file may be chosen again
    });
    hint.append(button("open a file", "open a file", () => input.click()), input);
    return hint;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.begin(this.placeOf(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.last) for (const move of moves(event)) this.go(this.placeOf(move));
    });
    for (const end of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(end, () => {
        this.last = null;
      });
    }
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => {
      this.cursor = null;
      this.draw();
    });
  }

  begin(place) {
    this.drawing.remember();
    this.last = place;
    if (this.isFlat) trace(this.drawing, place, place, this.brush);
    else dab(this.drawing, place, this.brush);
    this.drawing.changed();
  }

  go(place) {
    (this.isFlat ? trace : stroke)(this.drawing, this.last, place, this.brush);
    this.last = place;
    this.drawing.changed();
  }

  // Arrows move a cursor; Space or Enter paints under it.
  key(event) {
    const step = event.shiftKey ? 0.1 : 0.02;
    const ways = { ArrowUp: [-step, 0], ArrowDown: [step, 0] };
    Object.assign(ways, { ArrowLeft: [0, -step], ArrowRight: [0, step] });
    const way = ways[event.key];
    if (!way && event.key !== " " && event.key !== "Enter") return;
    event.preventDefault();
    this.cursor ??= [0.5, 0.5];
    if (way) this.cursor = this.cursor.map((x, a) => Math.min(1, Math.max(0, x + way[a])));
    else this.begin(this.cursor);
    this.last = null;
    this.draw();
  }

  placeOf(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
  }

  listenToFiles(dropped) {
    this.root.addEventListener("dragover", (event) => {
      event.preventDefault();
      this.root.classList.add("over");
    });
    this.root.addEventListener("dragleave", () => this.root.classList.remove("over"));
    this.root.addEventListener("drop", (event) => {
      event.preventDefault();
      this.root.classList.remove("over");
      const [file] = event.dataTransfer.files;
      if (file) dropped(file);
    });
  }
}

// A browser may put several moves into one event.
function moves(event) {
  const all = event.getCoalescedEvents?.() ?? [];
  return all.length ? all : [event];
}
