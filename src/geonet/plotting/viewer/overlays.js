// Overlays of a density: particles, their velocity, and the potential.

const LINES = 12; // number of contour lines
const LONGEST = 0.07; // longest arrow as a fraction of the picture's width

// Positions at time t from (times, N, d) at equally spaced times, which straight lines connect.
// Only periodic axes have positions outside [0, 1]; these are taken modulo one.
export function interpolateParticles(particles, t) {
  const [count, n, d] = particles.shape;
  const place = t * (count - 1);
  const first = Math.min(Math.floor(place), count - 2);
  const fraction = place - first;
  const size = n * d;
  const before = particles.values.subarray(first * size, (first + 1) * size);
  const after = particles.values.subarray((first + 1) * size, (first + 2) * size);
  const wrap = (x) => (x < 0 || x > 1 ? x - Math.floor(x) : x);
  const positions = before.map((x, i) => wrap(x + fraction * (after[i] - x)));
  const speeds = before.map((x, i) => (after[i] - x) * (count - 1));
  return { positions, speeds, n, d };
}

export function drawParticles(context, particles, t) {
  const { width, height } = context.canvas;
  const { positions, n } = interpolateParticles(particles, t);
  const radius = Math.max(2, width / 220);
  for (let i = 0; i < n; i += 1) {
    context.beginPath();
    context.arc(positions[2 * i + 1] * width, positions[2 * i] * height, radius, 0, 2 * Math.PI);
    context.fillStyle = "#ffffffd9";
    context.fill();
    context.strokeStyle = "#00000099";
    context.lineWidth = 1;
    context.stroke();
  }
}

// Arrows with lengths proportional to the speed.
export function drawVelocity(context, particles, t) {
  const { width, height } = context.canvas;
  const { positions, speeds, n } = interpolateParticles(particles, t);
  const scale = LONGEST / Math.max(1e-6, ...speeds.map(Math.abs));
  for (const [colour, thickness] of [["#000000a0", 3.5], ["#7ee8fa", 1.8]]) {
    context.beginPath();
    for (let i = 0; i < n; i += 1) {
      const x = positions[2 * i + 1] * width;
      const y = positions[2 * i] * height;
      addArrow(context, x, y, scale * speeds[2 * i + 1] * width, scale * speeds[2 * i] * height);
    }
    context.strokeStyle = colour;
    context.lineWidth = thickness * Math.max(1, width / 700);
    context.stroke();
  }
}

function addArrow(context, x, y, dx, dy) {
  const length = Math.hypot(dx, dy);
  if (length < 1) return;
  const head = Math.min(7, 0.4 * length) / length;
  context.moveTo(x, y);
  context.lineTo(x + dx, y + dy);
  context.moveTo(x + dx - head * (dx + 0.6 * dy), y + dy - head * (dy - 0.6 * dx));
  context.lineTo(x + dx, y + dy);
  context.lineTo(x + dx - head * (dx - 0.6 * dy), y + dy - head * (dy + 0.6 * dx));
}

// Contour lines of the potential (times, rows, columns) at the nearest of its times.
export function drawPotential(context, potential, t) {
  const [count, rows, columns] = potential.shape;
  const k = Math.round(t * (count - 1));
  const values = potential.values.subarray(k * rows * columns, (k + 1) * rows * columns);
  let [lowest, highest] = [Infinity, -Infinity];
  for (const value of values) {
    lowest = Math.min(lowest, value);
    highest = Math.max(highest, value);
  }
  context.strokeStyle = "#ffffffb3";
  context.lineWidth = Math.max(1, context.canvas.width / 600);
  context.beginPath();
  for (let line = 1; line <= LINES; line += 1) {
    const level = lowest + ((highest - lowest) * line) / (LINES + 1);
    addContour(context, values, rows, columns, level);
  }
  context.stroke();
}

// Marching squares between cell centres.
function addContour(context, values, rows, columns, level) {
  const { width, height } = context.canvas;
  const at = (i, j) => values[i * columns + j] - level;
  const point = (i, j) => [((j + 0.5) / columns) * width, ((i + 0.5) / rows) * height];
  for (let i = 0; i + 1 < rows; i += 1) {
    for (let j = 0; j + 1 < columns; j += 1) {
      const corners = [[i, j], [i, j + 1], [i + 1, j + 1], [i + 1, j]];
      const crossed = [];
      corners.forEach((corner, side) => {
        const next = corners[(side + 1) % 4];
        const [a, b] = [at(...corner), at(...next)];
        if (a < 0 === b < 0) return;
        const [p, q] = [point(...corner), point(...next)];
        const fraction = a / (a - b);
        crossed.push([p[0] + fraction * (q[0] - p[0]), p[1] + fraction * (q[1] - p[1])]);
      });
      for (let c = 0; c + 1 < crossed.length; c += 2) {
        context.moveTo(...crossed[c]);
        context.lineTo(...crossed[c + 1]);
      }
    }
  }
}
