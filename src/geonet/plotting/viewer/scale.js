// From densities to one of 256 levels and back, as matplotlib's norms do it.

const NORMS = {
  linear: [(share) => share, (share) => share],
  sqrt: [(share) => Math.sqrt(share), (share) => share * share],
};

export class Scale {
  // name: "linear", "sqrt" or "log"; lowest and highest: the densities of the first and last level.
  constructor({ name, lowest, highest }) {
    const [toShare, fromShare] = name === "log" ? logarithmic(lowest, highest) : NORMS[name];
    const range = highest - lowest || 1;
    this.level = (value) => 255 * toShare(Math.min(1, Math.max(0, (value - lowest) / range)));
    this.values = Float64Array.from({ length: 256 }, (_, k) => lowest + range * fromShare(k / 255));
    this.highest = highest;
  }
}

function logarithmic(lowest, highest) {
  const decades = Math.log(highest / lowest);
  const range = highest - lowest;
  return [
    (share) => Math.log((lowest + range * share) / lowest) / decades,
    (share) => (lowest * Math.exp(decades * share) - lowest) / range,
  ];
}
