// A polygon with a point to drag: its position gives the weights of the densities at the corners.

import { clipToPolygon, weightsAt } from "./polygon.js";
import { createButton, createElement } from "./view.js";

const KEY_STEP = 1 / 40;
const SVG = "http://www.w3.org/2000/svg";

export class WeightPad {
  // polygon: corners by density, their order, and the centre, see polygon.js;
  // onMove: called after the point has moved.
  constructor(polygon, onMove) {
    Object.assign(this, { polygon, onMove, position: polygon.centre });
    this.root = createElement("div", { className: "weight-pad" });
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", "Weights of the densities");
    this.area = createElement("div", { className: "area" });
    this.area.classList.toggle("segment", polygon.corners.length === 2);
    this.handle = createElement("div", { className: "handle", tabIndex: 0 });
    this.handle.dataset.keys = "";
    const attributes = { role: "slider", "aria-label": "Weights", "aria-valuemin": 0 };
    Object.entries({ ...attributes, "aria-valuemax": 100 }).forEach(([name, value]) =>
      this.handle.setAttribute(name, value),
    );
    this.area.append(this.buildOutline(), ...this.buildCorners(), this.handle);
    this.root.append(this.area, this.buildHint());
    this.listen();
    this.place();
  }

  get weights() {
    return weightsAt(this.position, this.polygon.corners, this.polygon.order);
  }

  move(position) {
    this.position = clipToPolygon(position, this.polygon.corners, this.polygon.order);
    this.place();
    this.onMove();
  }

  place() {
    this.handle.style.left = `${100 * this.position[0]}%`;
    this.handle.style.top = `${100 * this.position[1]}%`;
    const { weights } = this;
    this.handle.setAttribute("aria-valuenow", Math.round(100 * weights[weights.length - 1]));
    this.handle.setAttribute("aria-valuetext", this.describe());
  }

  describe() {
    const names = this.weights.map((weight, k) => `${k + 1}: ${weight.toFixed(2)}`);
    return `Weights ${names.join(", ")}`;
  }

  // Show a picture of every density at its corner.
  showThumbnails(canvases) {
    canvases.forEach((canvas, k) => {
      canvas.setAttribute("aria-hidden", "true");
      this.corners[k].replaceChildren(canvas, `${k + 1}`);
    });
  }

  buildOutline() {
    const outline = document.createElementNS(SVG, "svg");
    outline.setAttribute("viewBox", "0 0 1 1");
    outline.setAttribute("aria-hidden", "true");
    const polygon = document.createElementNS(SVG, "polygon");
    const points = this.polygon.order.map((k) => this.polygon.corners[k].join(","));
    polygon.setAttribute("points", points.join(" "));
    outline.append(polygon);
    return outline;
  }

  // Buttons beyond the corners.
  buildCorners() {
    this.corners = this.polygon.corners.map(([x, y], k) => {
      const button = createButton(`${k + 1}`, `Density ${k + 1}`, () => {
        this.move([x, y]);
        this.handle.focus(); // from where arrow keys move
      });
      button.classList.add("corner");
      button.style.left = `${100 * x}%`;
      button.style.top = `${100 * y}%`;
      return button;
    });
    return this.corners;
  }

  buildHint() {
    const text = "Drag the point, or use the arrow keys; digits jump to a density, 0 to the centre.";
    return createElement("p", { className: "hint", textContent: text });
  }

  listen() {
    const follow = (event) => {
      const box = this.area.getBoundingClientRect();
      this.move([(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height]);
    };
    this.area.addEventListener("pointerdown", (event) => {
      if (event.target.closest("button")) return;
      event.preventDefault();
      this.area.setPointerCapture(event.pointerId);
      this.handle.focus({ preventScroll: true });
      follow(event);
    });
    this.area.addEventListener("pointermove", (event) => {
      if (this.area.hasPointerCapture(event.pointerId)) follow(event);
    });
    this.handle.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.shiftKey ? 5 * KEY_STEP : KEY_STEP;
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const [x, y] = this.position;
    const corner = this.polygon.corners[Number(event.key) - 1];
    if (moves[event.key]) {
      this.move([x + step * moves[event.key][0], y + step * moves[event.key][1]]);
    } else if (event.key === "0" || event.key === "Home") this.move(this.polygon.centre);
    else if (corner) this.move(corner);
    else return;
    event.preventDefault();
  }
}
