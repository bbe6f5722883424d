// The densities of a path at equally spaced times, as levels of one colour scale.
// A path in 3D has one for each projection.

import { Scale } from "./scale.js";

const CURVE_SIDES = [10, 16]; // height and width of the picture of a density in 1D

export class Frames {
  // shape: rows and columns, or cells; levels: Uint8Array of all frames; sides: height and width of
  // the box, by default those of square cells; label: caption of a projection.
  constructor({ shape, count, levels, scale, sides = shape, label = "" }) {
    this.shape = shape;
    this.sides = shape.length === 1 ? CURVE_SIDES : sides;
    this.label = label;
    this.size = shape.reduce((product, n) => product * n, 1);
    this.count = count;
    this.levels = levels;
    this.scale = new Scale(scale);
  }

  frame(k) {
    return this.levels.subarray(k * this.size, (k + 1) * this.size);
  }

  // Levels at time t, interpolated between the two nearest frames.
  interpolate(t) {
    const place = t * (this.count - 1);
    const first = Math.min(Math.floor(place), this.count - 2);
    const fraction = place - first;
    const [before, after] = [this.frame(first), this.frame(first + 1)];
    return Float32Array.from(before, (level, i) => level + fraction * (after[i] - level));
  }

  // Levels of the linear blend of source and target, for comparison.
  blend(t) {
    const { values, level } = this.scale;
    const [source, target] = [this.frame(0), this.frame(this.count - 1)];
    return Float32Array.from(source, (own, i) =>
      level((1 - t) * values[own] + t * values[target[i]]),
    );
  }
}

// The frames in the data of a page, and the number of bytes of their levels at the start of a
// buffer. In 3D there is one for each projection.
export function readFrames(buffer, data) {
  const { projections = [], ...first } = data;
  let size = 0;
  const frames = [first, ...projections].map((part) => {
    const length = data.count * part.shape.reduce((product, n) => product * n, 1);
    const levels = new Uint8Array(buffer, size, length);
    size += length;
    return new Frames({ ...part, levels });
  });
  return { frames, size };
}

// Give a canvas the proportions of frames. Its longer side has `side` pixels and the full width of
// its parent, or less if the box of `others` is longer, since all have one scale.
export function fitCanvas(canvas, frames, side, others = [frames]) {
  const longest = Math.max(...others.flatMap((other) => other.sides));
  const [height, width] = frames.sides.map((length) => length / longest);
  [canvas.width, canvas.height] = [width, height].map((n) => Math.max(1, Math.round(side * n)));
  canvas.style.width = `${100 * width}%`;
}
