// Example densities below a pad.

import { drawHeatmap } from "../../plotting/viewer/heatmap.js";
import { drawCurve, readInk } from "../../plotting/viewer/line_plot.js";
import { createButton, createElement } from "../../plotting/viewer/view.js";
import { FULL } from "./drawing.js";

const SIDE = 96; // pixels of a thumbnail

// On smaller screens open galleries and settings of the brush would hide the result.
export const isWide = () => matchMedia("(min-width: 62rem)").matches;

// densities: name, label, group and values; onChoice: called with the chosen one;
// opens: whether a new gallery is open if there is space.
export function showGallery(root, densities, shape, colours, onChoice, opens) {
  const open = root.querySelector(".gallery")?.open ?? (opens && isWide());
  const details = createElement("details", { className: "gallery", open });
  details.append(createElement("summary", { textContent: "Examples" }));
  const groups = Map.groupBy(densities, ({ group }) => group);
  for (const [group, members] of groups) {
    const row = createElement("div", { className: "row" });
    for (const density of members) row.append(createThumbnail(density, shape, colours, onChoice));
    details.append(createElement("h3", { textContent: group }), row);
  }
  root.querySelector(".gallery")?.remove();
  root.append(details);
}

function createThumbnail(density, shape, colours, onChoice) {
  const button = createButton("", density.label, () => onChoice(density));
  const canvas = createElement("canvas", { width: SIDE, height: SIDE });
  canvas.setAttribute("aria-hidden", "true");
  button.append(canvas);
  const levels = Float32Array.from(density.values, (value) => (255 * value) / FULL);
  const context = canvas.getContext("2d");
  if (shape.length === 1) {
    const { curve, area } = readInk(document.documentElement);
    drawCurve(context, levels, SIDE, curve, area);
  } else drawHeatmap(context, levels, shape, colours);
  return button;
}
