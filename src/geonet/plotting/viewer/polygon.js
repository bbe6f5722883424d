// Weights of a point in a polygon whose corners belong to densities, as in weights.py.

// corners: positions by density; order: densities around the polygon, clockwise.
export function weightsAt([x, y], corners, order) {
  const count = corners.length;
  if (count === 2) return [1 - x, x];
  const around = order.map((k) => corners[k]);
  const areas = around.map((corner, i) => crossProduct([x, y], corner, around[(i + 1) % count]));
  const parts = around.map((corner, i) => {
    const before = (i + count - 1) % count;
    const own = crossProduct(around[before], corner, around[(i + 1) % count]);
    return areas.reduce(
      (product, area, j) => (j === i || j === before ? product : product * Math.max(0, area)),
      own,
    );
  });
  const total = parts.reduce((sum, part) => sum + part, 0);
  const weights = new Array(count);
  order.forEach((k, i) => {
    weights[k] = parts[i] / total;
  });
  return weights;
}

// The position with given weights: the mean of the corners.
export function locateWeights(weights, corners) {
  return [0, 1].map((a) => weights.reduce((sum, weight, k) => sum + weight * corners[k][a], 0));
}

// Weights with four decimals and the sum one: the largest weight takes the rounding errors.
export function roundWeights(weights) {
  const parts = weights.map((weight) => Math.round(1e4 * weight));
  const largest = parts.indexOf(Math.max(...parts));
  parts[largest] += 1e4 - parts.reduce((sum, part) => sum + part, 0);
  return parts.map((part) => part / 1e4);
}

// The point of the polygon nearest to a point.
export function clipToPolygon([x, y], corners, order) {
  if (corners.length === 2) return [Math.min(1, Math.max(0, x)), corners[0][1]];
  const around = order.map((k) => corners[k]);
  const sides = around.map((corner, i) => [corner, around[(i + 1) % around.length]]);
  if (sides.every(([a, b]) => crossProduct([x, y], a, b) >= 0)) return [x, y];
  let [nearest, least] = [[x, y], Infinity];
  for (const [a, b] of sides) {
    const [dx, dy] = [b[0] - a[0], b[1] - a[1]];
    const along = ((x - a[0]) * dx + (y - a[1]) * dy) / (dx * dx + dy * dy);
    const t = Math.min(1, Math.max(0, along));
    const point = [a[0] + t * dx, a[1] + t * dy];
    const distance = Math.hypot(point[0] - x, point[1] - y);
    if (distance < least) [nearest, least] = [point, distance];
  }
  return nearest;
}

// Points of the lattice around a position with their shares: [index, share] of a simplex.
export function locate(position, points, simplices) {
  let [best, highest] = [null, -Infinity];
  for (const simplex of simplices) {
    const shares = simplexShares(position, simplex.map((k) => points[k]));
    const lowest = Math.min(...shares);
    if (lowest > highest) [best, highest] = [[simplex, shares], lowest];
  }
  const [simplex, shares] = best;
  const kept = shares.map((share) => Math.max(0, share));
  const total = kept.reduce((sum, share) => sum + share, 0);
  return simplex.map((k, i) => [k, kept[i] / total]).filter(([, share]) => share > 1e-6);
}

function simplexShares([x, y], [a, b, c]) {
  if (!b) return [1];
  if (!c) {
    const t = (x - a[0]) / (b[0] - a[0]);
    return [1 - t, t];
  }
  const area = crossProduct(a, b, c);
  return [
    crossProduct([x, y], b, c) / area,
    crossProduct([x, y], c, a) / area,
    crossProduct([x, y], a, b) / area,
  ];
}

// Twice the area of the triangle p, a, b, positive if it is clockwise on the screen.
function crossProduct(p, a, b) {
  return (a[0] - p[0]) * (b[1] - p[1]) - (a[1] - p[1]) * (b[0] - p[0]);
}
