// Densities to one of 256 levels and back, with the formulas of matplotlib's norms.

const NORMS = {
  linear: [(fraction) => fraction, (fraction) => fraction],
  sqrt: [(fraction) => Math.sqrt(fraction), (fraction) => fraction * fraction],
};

export class Scale {
  // name: "linear", "sqrt" or "log"; lowest, highest: densities of the first and last level.
  constructor({ name, lowest, highest }) {
    const [toFraction, fromFraction] = name === "log" ? logNorm(lowest, highest) : NORMS[name];
    const range = highest - lowest || 1;
    this.level = (value) => 255 * toFraction(Math.min(1, Math.max(0, (value - lowest) / range)));
    this.values = Float64Array.from({ length: 256 }, (_, k) => lowest + range * fromFraction(k / 255));
    this.highest = highest;
  }
}

function logNorm(lowest, highest) {
  const decades = Math.log(highest / lowest);
  const range = highest - lowest;
  return [
    (fraction) => Math.log((lowest + range * fraction) / lowest) / decades,
    (fraction) => (lowest * Math.exp(decades * fraction) - lowest) / range,
  ];
}
