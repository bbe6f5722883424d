// The drawing as the end of the page's address, so that a link brings it back.

import { bytesOf, deflated, inflated, textOf } from "./bytes.js";
import { bytesIn } from "./server.js";
import { size } from "./drawing.js";

// setup: shape, source, target, solver, epsilon, and the time t.
export async function fragmentOf({ shape, source, target, solver, epsilon }, t) {
  const numbers = new Uint8Array([...bytesIn(source), ...bytesIn(target)]);
  const parts = { v: "1", n: shape.join("x"), s: solver, t: t.toFixed(2) };
  if (epsilon !== null) parts.e = String(epsilon);
  parts.d = safe(textOf(await deflated(numbers)));
  return `#${new URLSearchParams(parts)}`;
}

// null where there is nothing, or nothing that can be read.
export async function setupOf(fragment) {
  const parts = new URLSearchParams(fragment.slice(1));
  if (parts.get("v") !== "1") return null;
  const shape = parts.get("n").split("x").map(Number);
  const bytes = await inflated(bytesOf(unsafe(parts.get("d"))));
  const values = new Uint16Array(bytes.buffer);
  const cells = size(shape);
  if (values.length !== 2 * cells) return null;
  return {
    shape,
    source: values.slice(0, cells),
    target: values.slice(cells),
    solver: parts.get("s"),
    epsilon: parts.has("e") ? Number(parts.get("e")) : null,
    t: Number(parts.get("t") ?? 0),
  };
}

const safe = (text) => text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

const unsafe = (text) => {
  const padded = text.replaceAll("-", "+").replaceAll("_", "/");
  return padded + "=".repeat((4 - (padded.length % 4)) % 4);
};
