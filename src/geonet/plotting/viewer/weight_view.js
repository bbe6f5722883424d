// The view of barycenters: the density, and a polygon with a point to drag.

import { carryValues } from "./carry.js";
import { fitCanvas } from "./frames.js";
import { drawHeatmap } from "./heatmap.js";
import { drawCurve, readInk } from "./line_plot.js";
import { locate, weightsAt } from "./polygon.js";
import { createElement } from "./view.js";
import { WeightPad } from "./weight_pad.js";

const LONGER_SIDE = 720; // pixels of the density
const THUMBNAIL = 96; // pixels of the densities at the corners

export class WeightView {
  // polygon: see weight_pad.js; onMove: called after the point has moved.
  constructor(root, colours, polygon, onMove = () => {}) {
    Object.assign(this, { root, colours, frames: null, table: null });
    this.pad = new WeightPad(polygon, () => {
      this.draw();
      onMove();
    });
    this.canvas = createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", "Barycenter at the selected weights");
    this.figure = createElement("figure");
    const pictures = createElement("div", { className: "pictures" });
    pictures.append(this.figure, this.pad.root);
    this.showProjections([]);
    this.readout = createElement("div", { className: "readout" });
    this.readout.setAttribute("aria-live", "polite");
    root.classList.add("view", "weights");
    root.replaceChildren(pictures, this.readout);
    this.draw();
  }

  // frames: barycenters and densities on one scale. table: positions of barycenters, the simplices
  // between them, their fields (see carry.js), and the frames of the densities, `ends`; for the
  // text, objectives by barycenter, and gaps of the barycenters with bounds, `measured`.
  // projections: further frames in 3D.
  show(frames, table, projections = []) {
    Object.assign(this, { frames, table });
    this.root.classList.toggle("curve", frames.shape.length === 1);
    fitCanvas(this.canvas, frames, LONGER_SIDE, [frames, ...projections]);
    this.showProjections(projections);
    this.pad.showThumbnails(table.ends.map((k) => this.drawThumbnail(k)));
    this.draw();
  }

  // Show the projections in 3D below each other, with their labels.
  showProjections(projections) {
    this.projections = projections.map((frames) => {
      const canvas = createElement("canvas");
      fitCanvas(canvas, frames, LONGER_SIDE, [this.frames, ...projections]);
      return { frames, canvas };
    });
    const parts = [{ frames: this.frames, canvas: this.canvas }, ...this.projections];
    this.figure.replaceChildren(
      ...parts.flatMap(({ frames, canvas }) => {
        const label = frames?.label ?? "";
        return label ? [canvas, createElement("figcaption", { textContent: label })] : [canvas];
      }),
    );
  }

  clear() {
    this.frames = null;
    this.draw();
  }

  draw() {
    this.root.classList.toggle("empty", !this.frames);
    this.describe();
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (!this.frames) return;
    const levels = this.blend(this.frames);
    if (this.frames.shape.length === 1) this.drawCurves(context, levels);
    else drawHeatmap(context, levels, this.frames.shape, this.colours);
    for (const { frames, canvas } of this.projections) {
      drawHeatmap(canvas.getContext("2d"), this.blend(frames), frames.shape, this.colours);
    }
  }

  // Barycenters of the table around the point, with their shares.
  get neighbours() {
    return locate(this.pad.position, this.table.positions, this.table.simplices);
  }

  // Levels of the barycenter: the neighbours in the table, carried to these weights, and averaged.
  blend(frames) {
    const { values, level } = frames.scale;
    const total = new Float64Array(frames.size);
    const { weights, polygon } = this.pad;
    for (const [k, share] of this.neighbours) {
      const own = Float64Array.from(frames.frame(k), (entry) => values[entry]);
      const fields = this.table.fields?.[k];
      // Weighted by its own weights, the displacements of a barycenter cancel except for rounding.
      const before = weightsAt(this.table.positions[k], polygon.corners, polygon.order);
      const change = weights.map((weight, i) => weight - before[i]);
      const isNear = change.every((part) => Math.abs(part) < 2e-4);
      const carried =
        fields && !isNear ? carryValues(own, frames.shape, fields, change) : own;
      for (let i = 0; i < total.length; i += 1) total[i] += share * carried[i];
    }
    return Float32Array.from(total, level);
  }

  drawCurves(context, levels) {
    const ink = readInk(this.root);
    for (const k of this.table.ends) {
      drawCurve(context, this.frames.frame(k), this.canvas.height, ink.faint, null);
    }
    drawCurve(context, levels, this.canvas.height, ink.curve, ink.area);
  }

  drawThumbnail(k) {
    const canvas = createElement("canvas");
    fitCanvas(canvas, this.frames, THUMBNAIL);
    const context = canvas.getContext("2d");
    if (this.frames.shape.length === 1) {
      const ink = readInk(this.root);
      drawCurve(context, this.frames.frame(k), canvas.height, ink.curve, ink.area);
    } else drawHeatmap(context, this.frames.frame(k), this.frames.shape, this.colours);
    return canvas;
  }

  describe() {
    const lines = [this.pad.describe()];
    if (this.table?.objective) {
      const { objective } = this.table;
      const average = this.neighbours.reduce((sum, [k, share]) => sum + share * objective[k], 0);
      lines.push(`Weighted sum of squared distances ${average.toPrecision(3)}`);
      const gap = this.nearestGap();
      if (gap !== null) lines.push(`Optimal within ${Number((100 * gap).toPrecision(2))} % near here`);
    }
    this.readout.replaceChildren(...lines.map((text) => createElement("p", { textContent: text })));
  }

  // Gap of the nearest barycenter for which it was computed; null if there is none.
  nearestGap() {
    const { positions, measured, gaps } = this.table;
    const [x, y] = this.pad.position;
    const far = measured.map((k) => Math.hypot(positions[k][0] - x, positions[k][1] - y));
    return measured.length ? gaps[far.indexOf(Math.min(...far))] : null;
  }
}
