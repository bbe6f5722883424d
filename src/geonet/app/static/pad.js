// A canvas to draw on, with tools; it accepts dropped files.

import { drawHeatmap } from "../../plotting/viewer/heatmap.js";
import { drawCurve, readInk } from "../../plotting/viewer/line_plot.js";
import { createButton, createElement } from "../../plotting/viewer/view.js";
import { paintCurve, paintDab, paintStroke } from "./brush.js";
import { FULL } from "./drawing.js";
import { isWide } from "./gallery.js";

const SIDE = 480; // pixels

export class Pad {
  // root: parent element; drawing: see drawing.js; onFile: called with a file.
  constructor(root, drawing, colours, onFile) {
    this.root = root;
    this.drawing = drawing;
    this.colours = colours;
    this.brush = { radius: 0.08, softness: 0.5, erases: false };
    this.last = null;
    this.cursor = null;
    this.canvas = createElement("canvas", { tabIndex: 0 });
    this.canvas.dataset.keys = "";
    this.canvas.setAttribute("role", "application");
    this.heading = createElement("h2");
    root.append(this.heading, this.canvas, this.buildTools(), this.buildOptions(onFile));
    this.bindPointer();
    this.bindDrop(onFile);
    this.draw();
  }

  setTitle(title) {
    this.heading.textContent = title;
    this.root.setAttribute("aria-label", title);
    const hint = "Draw with the pointer, or move with the arrow keys and paint with Space.";
    this.canvas.setAttribute("aria-label", `${title}. ${hint}`);
    this.fileInput.setAttribute("aria-label", `${title}: open a file`);
  }

  get isCurve() {
    return this.drawing.shape.length === 1;
  }

  draw() {
    this.root.classList.toggle("curve", this.isCurve);
    [this.canvas.width, this.canvas.height] = [SIDE, this.isCurve ? (SIDE * 10) / 16 : SIDE];
    const context = this.canvas.getContext("2d");
    const levels = Float32Array.from(this.drawing.values, (value) => (255 * value) / FULL);
    if (this.isCurve) {
      const { curve, area } = readInk(this.root);
      drawCurve(context, levels, this.canvas.height, curve, area);
    } else drawHeatmap(context, levels, this.drawing.shape, this.colours);
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

  buildTools() {
    const bar = createElement("div", { className: "tools" });
    this.paintButton = createButton("Brush", "Brush", () => this.chooseTool(false));
    this.eraseButton = createButton("Eraser", "Eraser", () => this.chooseTool(true));
    this.undo = createButton("Undo", "Undo", () => this.drawing.undo());
    const clear = createButton("Clear", "Clear", () => this.drawing.clear());
    const invert = createButton("Invert", "Invert", () => this.drawing.invert());
    bar.append(this.paintButton, this.eraseButton, this.undo, clear, invert);
    this.chooseTool(false);
    return bar;
  }

  buildOptions(onFile) {
    const details = createElement("details", { className: "brush", open: isWide() });
    details.append(
      createElement("summary", { textContent: "Brush and files" }),
      this.buildSlider("Size", 0.02, 0.3, "radius"),
      this.buildSlider("Softness", 0, 1, "softness"),
      this.buildFileHint(onFile),
    );
    return details;
  }

  buildSlider(text, min, max, name) {
    const label = createElement("label", { textContent: text });
    const input = createElement("input", { type: "range", min, max, step: 0.01 });
    input.value = this.brush[name];
    input.addEventListener("input", () => {
      this.brush[name] = Number(input.value);
    });
    label.append(input);
    return label;
  }

  chooseTool(erases) {
    this.brush.erases = erases;
    this.paintButton.setAttribute("aria-pressed", String(!erases));
    this.eraseButton.setAttribute("aria-pressed", String(erases));
  }

  // A button for keyboards and phones, which cannot drop files.
  buildFileHint(onFile) {
    const hint = createElement("p", { className: "hint" });
    hint.append("Drop an image or array here, or ");
    const input = createElement("input", { type: "file", accept: "image/*,.npy,.npz,.csv" });
    input.hidden = true;
    this.fileInput = input;
    input.addEventListener("change", () => {
      if (input.files[0]) onFile(input.files[0]);
      input.value = ""; // allows the same file again
    });
    hint.append(createButton("open a file", "Open a file", () => input.click()), input);
    return hint;
  }

  bindPointer() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.startStroke(this.findPosition(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.last) for (const move of listMoves(event)) this.continueStroke(this.findPosition(move));
    });
    for (const end of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(end, () => {
        this.last = null;
      });
    }
    canvas.addEventListener("keydown", (event) => this.handleKey(event));
    canvas.addEventListener("blur", () => {
      this.cursor = null;
      this.draw();
    });
  }

  startStroke(position) {
    this.drawing.save();
    this.last = position;
    if (this.isCurve) paintCurve(this.drawing, position, position, this.brush);
    else paintDab(this.drawing, position, this.brush);
    this.drawing.onChange();
  }

  continueStroke(position) {
    (this.isCurve ? paintCurve : paintStroke)(this.drawing, this.last, position, this.brush);
    this.last = position;
    this.drawing.onChange();
  }

  // Arrow keys move a cursor, Space or Enter paints at its position.
  handleKey(event) {
    const length = event.shiftKey ? 0.1 : 0.02;
    const steps = { ArrowUp: [-length, 0], ArrowDown: [length, 0] };
    Object.assign(steps, { ArrowLeft: [0, -length], ArrowRight: [0, length] });
    const step = steps[event.key];
    if (!step && event.key !== " " && event.key !== "Enter") return;
    event.preventDefault();
    this.cursor ??= [0.5, 0.5];
    if (step) this.cursor = this.cursor.map((x, a) => Math.min(1, Math.max(0, x + step[a])));
    else this.startStroke(this.cursor);
    this.last = null;
    this.draw();
  }

  findPosition(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
  }

  bindDrop(onFile) {
    this.root.addEventListener("dragover", (event) => {
      event.preventDefault();
      this.root.classList.add("over");
    });
    this.root.addEventListener("dragleave", () => this.root.classList.remove("over"));
    this.root.addEventListener("drop", (event) => {
      event.preventDefault();
      this.root.classList.remove("over");
      const [file] = event.dataTransfer.files;
      if (file) onFile(file);
    });
  }
}

// Browsers may combine several moves in one event.
function listMoves(event) {
  const all = event.getCoalescedEvents?.() ?? [];
  return all.length ? all : [event];
}
