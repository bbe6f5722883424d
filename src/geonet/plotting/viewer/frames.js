// The densities of a path at even times, as levels of one scale.

import { Scale } from "./scale.js";

export class Frames {
  // shape: rows and columns, or cells; levels: Uint8Array, one frame after the other.
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

  // Levels at t: the two nearest frames, mixed. Frames are close, so nothing is seen twice.
  at(t) {
    const place = t * (this.count - 1);
    const first = Math.min(Math.floor(place), this.count - 2);
    const share = place - first;
    const [before, after] = [this.frame(first), this.frame(first + 1)];
    return Float32Array.from(before, (level, i) => level + share * (after[i] - level));
  }

  // What fading one end into the other gives, for comparison.
  mixture(t) {
    const { values, level } = this.scale;
    const [source, target] = [this.frame(0), this.frame(this.count - 1)];
    return Float32Array.from(source, (own, i) =>
      level((1 - t) * values[own] + t * values[target[i]]),
    );
  }
}
