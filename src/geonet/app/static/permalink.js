// The drawings and settings as the fragment of the page's address.

import { decodeBase64, deflate, encodeBase64, inflate } from "../../plotting/viewer/bytes.js";
import { toBytes } from "./api.js";
import { size } from "./drawing.js";

// setup: shape, source, target, solver, epsilon; t: the time.
export async function encodePermalink({ shape, source, target, solver, epsilon }, t) {
  const numbers = new Uint8Array([...toBytes(source), ...toBytes(target)]);
  const parts = { v: "1", n: shape.join("x"), s: solver, t: t.toFixed(2) };
  if (epsilon !== null) parts.e = String(epsilon);
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

const toUrlSafe = (text) => text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

const fromUrlSafe = (text) => {
  const base64 = text.replaceAll("-", "+").replaceAll("_", "/");
  return base64 + "=".repeat((4 - (base64.length % 4)) % 4);
};
