// What is on a pad: a density of whole numbers from 0 to FULL, with what it was before each stroke.

export const FULL = 65535;
const REMEMBERED = 50; // strokes that can be undone

export class Drawing {
  // shape: rows and columns, or cells; changed: called after every change.
  constructor(shape, changed) {
    this.shape = shape;
    this.changed = changed;
    this.values = new Uint16Array(size(shape));
    this.past = [];
  }

  get isEmpty() {
    return this.values.every((value) => value === 0);
  }

  // Before a stroke, so that `undo` can come back.
  remember() {
    this.past.push(this.values.slice());
    if (this.past.length > REMEMBERED) this.past.shift();
  }

  undo() {
    const before = this.past.pop();
    if (!before) return;
    this.values = before;
    this.changed();
  }

  clear() {
    this.replace(new Uint16Array(this.values.length));
  }

  // For ink on paper, where the dark is what counts.
  invert() {
    this.replace(this.values.map((value) => FULL - value));
  }

  // All at once: from the gallery, a file or a link.
  replace(values) {
    this.remember();
    this.values = Uint16Array.from(values);
    this.changed();
  }

  // Other cells: what was there is averaged or repeated, and can no longer be undone.
  resize(shape) {
    this.values = resized(this.values, this.shape, shape);
    this.shape = shape;
    this.past = [];
  }
}

export function size(shape) {
  return shape.reduce((product, n) => product * n, 1);
}

// Means over the cells that a new cell covers; numbers of cells are multiples of each other.
export function resized(values, from, to) {
  if (from.length === 1) return along(values, 1, from[0], 1, to[0]);
  const rows = along(values, 1, from[0], from[1], to[0]);
  return along(rows, to[0], from[1], 1, to[1]);
}

// One axis of (outer, n, inner) numbers, to m cells.
function along(values, outer, n, inner, m) {
  const made = new Uint16Array(outer * m * inner);
  const ratio = n / m;
  for (let a = 0; a < outer; a += 1) {
    for (let k = 0; k < m; k += 1) {
      const first = Math.floor(k * ratio);
      const last = Math.max(first + 1, Math.floor((k + 1) * ratio));
      for (let b = 0; b < inner; b += 1) {
        let sum = 0;
        for (let i = first; i < last; i += 1) sum += values[(a * n + i) * inner + b];
        made[(a * m + k) * inner + b] = Math.round(sum / (last - first));
      }
    }
  }
  return made;
}
