// Strokes of a brush. Positions are fractions of the box: down, right.

import { FULL } from "./drawing.js";

// Paint one dab, with a soft rim.
export function paintDab(drawing, [down, right], brush) {
  const [rows, columns] = drawing.shape;
  const [y, x] = [down * rows, right * columns];
  const reach = Math.max(0.75, brush.radius * rows);
  const inner = reach * (1 - brush.softness);
  for (let i = Math.max(0, Math.floor(y - reach)); i < Math.min(rows, y + reach); i += 1) {
    for (let j = Math.max(0, Math.floor(x - reach)); j < Math.min(columns, x + reach); j += 1) {
      const distance = Math.hypot(i + 0.5 - y, j + 0.5 - x);
      paintCell(drawing.values, i * columns + j, strength(distance, inner, reach), brush.erases);
    }
  }
}

// Paint dabs along a line, close enough to leave no gaps.
export function paintStroke(drawing, from, to, brush) {
  const length = Math.hypot(to[0] - from[0], to[1] - from[1]);
  const spacing = Math.max(0.5 / drawing.shape[0], brush.radius / 4);
  const count = Math.max(1, Math.ceil(length / spacing));
  for (let k = 1; k <= count; k += 1) {
    paintDab(drawing, [0, 1].map((a) => from[a] + ((to[a] - from[a]) * k) / count), brush);
  }
}

// In 1D, draw a straight line of the curve between two positions of the pointer.
export function paintCurve(drawing, from, to, brush) {
  const [n] = drawing.shape;
  const [first, last] = from[1] <= to[1] ? [from, to] : [to, from];
  const width = Math.max(last[1] - first[1], 1e-9);
  const reach = Math.max(0.5 / n, brush.radius / 8);
  const begin = Math.max(0, Math.floor((first[1] - reach) * n));
  for (let i = begin; i < Math.min(n, (last[1] + reach) * n); i += 1) {
    const fraction = Math.min(1, Math.max(0, ((i + 0.5) / n - first[1]) / width));
    const height = 1 - (first[0] + fraction * (last[0] - first[0]));
    drawing.values[i] = brush.erases ? 0 : Math.round(FULL * Math.min(1, Math.max(0, height)));
  }
}

function strength(distance, inner, reach) {
  if (distance <= inner) return 1;
  if (distance >= reach) return 0;
  return 0.5 + 0.5 * Math.cos((Math.PI * (distance - inner)) / (reach - inner));
}

function paintCell(values, i, opacity, erases) {
  if (opacity <= 0) return;
  const level = Math.round(FULL * opacity);
  values[i] = erases ? Math.min(values[i], FULL - level) : Math.max(values[i], level);
}
