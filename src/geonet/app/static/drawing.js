// A drawing: integers from 0 to FULL on a grid, with an undo history.

export const FULL = 65535;
const MAX_UNDO = 50; // strokes

export class Drawing {
  // shape: rows and columns, or cells; onChange: called after every change.
  constructor(shape, onChange) {
    this.onChange = onChange;
    this.reset(shape);
  }

  // Start an empty drawing without a history.
  reset(shape) {
    this.shape = shape;
    this.values = new Uint16Array(size(shape));
    this.past = [];
  }

  get isEmpty() {
    return this.values.every((value) => value === 0);
  }

  // Save the drawing for `undo`.
  save() {
    this.past.push(this.values.slice());
    if (this.past.length > MAX_UNDO) this.past.shift();
  }

  undo() {
    const before = this.past.pop();
    if (!before) return;
    this.values = before;
    this.onChange();
  }

  clear() {
    this.replace(new Uint16Array(this.values.length));
  }

  // For images with dark ink on a bright background.
  invert() {
    this.replace(this.values.map((value) => FULL - value));
  }

  // Replace all values, by an example, a file or a link.
  replace(values) {
    this.save();
    this.values = Uint16Array.from(values);
    this.onChange();
  }

  // Average or repeat the values on other cells; this clears the history.
  resize(shape) {
    this.values = resample(this.values, this.shape, shape);
    this.shape = shape;
    this.past = [];
  }
}

export function size(shape) {
  return shape.reduce((product, n) => product * n, 1);
}

// Average over the cells within each new cell; one number of cells is a multiple of the other.
export function resample(values, from, to) {
  if (from.length === 1) return resampleAxis(values, 1, from[0], 1, to[0]);
  const rows = resampleAxis(values, 1, from[0], from[1], to[0]);
  return resampleAxis(rows, to[0], from[1], 1, to[1]);
}

// Resample one axis of (outer, n, inner) numbers to m cells.
function resampleAxis(values, outer, n, inner, m) {
  const result = new Uint16Array(outer * m * inner);
  const ratio = n / m;
  for (let a = 0; a < outer; a += 1) {
    for (let k = 0; k < m; k += 1) {
      const first = Math.floor(k * ratio);
      const last = Math.max(first + 1, Math.floor((k + 1) * ratio));
      for (let b = 0; b < inner; b += 1) {
        let sum = 0;
        for (let i = first; i < last; i += 1) sum += values[(a * n + i) * inner + b];
        result[(a * m + k) * inner + b] = Math.round(sum / (last - first));
      }
    }
  }
  return result;
}
