// Densities to start from, below a pad.

import { drawCurve, inkOf } from "./curve.js";
import { drawPicture } from "./picture.js";
import { button, element } from "./view.js";
import { FULL } from "./drawing.js";

const SIDE = 96; // pixels of a small picture
const WIDE = "(min-width: 62rem)"; // below, an open gallery would push the path off the screen

// densities: name, label, group and values; chosen: called with one of them.
export function showGallery(root, densities, shape, colours, chosen) {
  const open = root.querySelector(".gallery")?.open ?? matchMedia(WIDE).matches;
  const details = element("details", { className: "gallery", open });
  details.append(element("summary", { textContent: "Start from" }));
  const groups = Map.groupBy(densities, ({ group }) => group);
  for (const [group, members] of groups) {
    const row = element("div", { className: "row" });
    for (const density of members) row.append(thumbnail(density, shape, colours, chosen));
    details.append(element("h3", { textContent: group }), row);
  }
  root.querySelector(".gallery")?.remove();
  root.append(details);
}

function thumbnail(density, shape, colours, chosen) {
  const made = button("", density.label, () => chosen(density));
  const canvas = element("canvas", { width: SIDE, height: SIDE });
  canvas.setAttribute("aria-hidden", "true");
  made.append(canvas);
  const levels = Float32Array.from(density.values, (value) => (255 * value) / FULL);
  const context = canvas.getContext("2d");
  if (shape.length === 1) {
    const { curve, area } = inkOf(document.documentElement);
    drawCurve(context, levels, SIDE, curve, area);
  } else drawPicture(context, levels, shape, colours);
  return made;
}
