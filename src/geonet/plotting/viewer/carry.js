// Barycenters between those of a table: each neighbour is carried along its maps to the new
// weights, then they are averaged. For two densities this is the geodesic.

// Displacements of `count` barycenters, from signed bytes; null without them.
// fields: shape of one barycenter's displacements, and the largest of all.
export function readFields(buffer, offset, count, fields) {
  if (!fields) return null;
  const size = fields.shape.reduce((product, n) => product * n, 1);
  return Array.from({ length: count }, (_, k) => {
    const bytes = new Int8Array(buffer, offset + k * size, size);
    const values = Float32Array.from(bytes, (byte) => (byte / 127) * fields.largest);
    return { shape: fields.shape, values };
  });
}

// Carry values (rows × columns) by y + Σ w_i D_i(y).
// fields: displacements (density, component, row, column) on a coarse lattice, as fractions of the
// sides, down before right; a line has one component.
export function carryValues(values, shape, fields, weights) {
  const [rows, columns] = shape.length === 1 ? [1, shape[0]] : shape;
  const right = faceShifts(fields, weights, shape.length - 1, [rows, columns + 1], columns);
  const down = shape.length === 2 ? faceShifts(fields, weights, 0, [rows + 1, columns], rows) : null;
  const carried = new Float64Array(values.length);
  for (let i = 0; i < rows; i += 1) {
    for (let j = 0; j < columns; j += 1) {
      const value = values[i * columns + j];
      if (value <= 0) continue;
      const k = i * (columns + 1) + j;
      const across = coverage(j + right[k], j + 1 + right[k + 1], columns);
      const along = down
        ? coverage(i + down[i * columns + j], i + 1 + down[(i + 1) * columns + j], rows)
        : [0, [1]];
      depositBox(carried, columns, value, along, across);
    }
  }
  return carried;
}

function depositBox(carried, columns, value, [top, heights], [left, widths]) {
  for (let a = 0; a < heights.length; a += 1) {
    for (let b = 0; b < widths.length; b += 1) {
      carried[(top + a) * columns + left + b] += value * heights[a] * widths[b];
    }
  }
}

// The first cell that an interval covers, and its shares in this and the following cells.
function coverage(start, end, cells) {
  let [low, high] = start < end ? [start, end] : [end, start];
  if (high - low < 1e-3) [low, high] = [(low + high - 1e-3) / 2, (low + high + 1e-3) / 2];
  low = Math.min(Math.max(low, 0), cells - 1e-3);
  high = Math.min(Math.max(high, low + 1e-3), cells);
  const first = Math.min(Math.floor(low), cells - 1);
  const shares = [];
  for (let k = first; k < high && k < cells; k += 1) {
    shares.push((Math.min(k + 1, high) - Math.max(k, low)) / (high - low));
  }
  return [first, shares];
}

// One component of Σ w_i D_i in cells, at the faces of the cells: bilinear between lattice points.
function faceShifts({ shape, values }, weights, component, [rows, columns], cells) {
  const isLine = shape.length === 3; // (density, component, column)
  const [height, width] = isLine ? [1, shape[2]] : shape.slice(2);
  const sum = new Float64Array(height * width);
  weights.forEach((weight, k) => {
    const offset = (k * shape[1] + component) * height * width;
    if (weight !== 0) for (let p = 0; p < sum.length; p += 1) sum[p] += weight * values[offset + p];
  });
  const shifts = new Float64Array(rows * columns);
  const isAcross = isLine || component === 1;
  const [above, beside] = [
    latticePlaces(rows, height, isAcross ? 0.5 : 0, isAcross ? rows : rows - 1),
    latticePlaces(columns, width, isAcross ? 0 : 0.5, isAcross ? columns - 1 : columns),
  ];
  for (let i = 0; i < rows; i += 1) {
    const [r0, r1, s] = above[i];
    for (let j = 0; j < columns; j += 1) {
      const [c0, c1, t] = beside[j];
      const upper = (1 - t) * sum[r0 * width + c0] + t * sum[r0 * width + c1];
      const lower = (1 - t) * sum[r1 * width + c0] + t * sum[r1 * width + c1];
      shifts[i * columns + j] = cells * ((1 - s) * upper + s * lower);
    }
  }
  return shifts;
}

// For each of `count` places at (k + offset)/cells: two lattice points and the share of the second.
function latticePlaces(count, points, offset, cells) {
  return Array.from({ length: count }, (_, k) => {
    const place = Math.min(points - 1, Math.max(0, ((k + offset) / cells) * points - 0.5));
    const first = Math.min(Math.floor(place), Math.max(0, points - 2));
    return [first, Math.min(first + 1, points - 1), place - first];
  });
}
