// The drawings and settings as the fragment of the page's address.

import { decodeBase64, deflate, encodeBase64, inflate } from "../../plotting/viewer/bytes.js";
import { toBytes } from "./api.js";
import { size } from "./drawing.js";

// state: see main.js; t: the time.
export async function encodePermalink(state, t) {
  const { shape, densities, weights, solver, epsilon, reach, growth } = state;
  const numbers = new Uint8Array(densities.flatMap((values) => Array.from(toBytes(values))));
  const parts = { v: "1", n: shape.join("x") };
  if (weights) parts.w = weights.join(",");
  else Object.assign(parts, { s: solver, t: t.toFixed(2) });
  const options = { e: epsilon, r: reach, g: growth };
  for (const [key, value] of Object.entries(options)) if (value !== null) parts[key] = String(value);
  parts.d = toUrlSafe(encodeBase64(await deflate(numbers)));
  return `#${new URLSearchParams(parts)}`;
}

// Returns null if the fragment is not a permalink.
export async function decodePermalink(fragment) {
  const parts = new URLSearchParams(fragment.slice(1));
  if (parts.get("v") !== "1") return null;
  const shape = parts.get("n").split("x").map(Number);
  const bytes = await inflate(decodeBase64(fromUrlSafe(parts.get("d"))));
  const values = new Uint16Array(bytes.buffer);
  const weights = parts.get("w")?.split(",").map(Number) ?? null;
  const [cells, count] = [size(shape), weights?.length ?? 2];
  const isWhole = values.length === count * cells && [...shape, ...(weights ?? [])].every(isFinite);
  if (!isWhole || shape.length > 2 || count < 2 || count > 4) return null;
  const number = (key) => (parts.has(key) ? Number(parts.get(key)) : null);
  return {
    shape,
    drawings: Array.from({ length: count }, (_, k) => values.slice(k * cells, (k + 1) * cells)),
    weights,
    solver: parts.get("s"),
    epsilon: number("e"),
    reach: number("r"),
    growth: parts.get("g"),
    t: number("t") ?? 0,
  };
}

const toUrlSafe = (text) => text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

const fromUrlSafe = (text) => {
  const base64 = text.replaceAll("-", "+").replaceAll("_", "/");
  return base64 + "=".repeat((4 - (base64.length % 4)) % 4);
};
