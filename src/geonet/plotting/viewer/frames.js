// The densities of a path at equally spaced times, as levels of one colour scale.

import { Scale } from "./scale.js";

export class Frames {
  // shape: rows and columns, or cells; levels: Uint8Array of all frames.
  constructor({ shape, count, levels, scale }) {
    this.shape = shape;
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
