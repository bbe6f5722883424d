// A 1D density as a filled curve, with source and target as outlines.

import { drawHeatmap } from "./heatmap.js";

const HEADROOM = 1.08; // above the highest curve
const HISTORY = 0.28; // height fraction of the space-time picture, t = 0 at its top

// Colours of curves in the light or dark theme of an element.
export function readInk(element) {
  const style = getComputedStyle(element);
  const names = ["curve", "area", "faint", "blend"];
  const colours = names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]);
  return { ...Object.fromEntries(colours), mark: "#ffffff" };
}

export function drawCurves(context, frames, t, showBlend, colours, ink) {
  const { width, height } = context.canvas;
  const bottom = height * (1 - HISTORY) - 12;
  context.clearRect(0, 0, width, height);
  for (const k of [0, frames.count - 1]) {
    drawCurve(context, frames.frame(k), bottom, ink.faint, null);
  }
  if (showBlend) drawCurve(context, frames.blend(t), bottom, ink.blend, null);
  drawCurve(context, frames.interpolate(t), bottom, ink.curve, ink.area);
  drawHistory(context, frames, t, colours, ink);
}

export function drawCurve(context, levels, bottom, line, area) {
  const { width } = context.canvas;
  const step = width / levels.length;
  context.beginPath();
  levels.forEach((level, i) => {
    context.lineTo((i + 0.5) * step, bottom * (1 - level / 255 / HEADROOM));
  });
  context.lineWidth = Math.max(1.5, width / 400);
  context.lineJoin = "round";
  context.strokeStyle = line;
  context.stroke();
  if (!area) return;
  context.lineTo(width, bottom);
  context.lineTo(0, bottom);
  context.fillStyle = area;
  context.fill();
}

function drawHistory(context, frames, t, colours, ink) {
  const { width, height } = context.canvas;
  const top = Math.round(height * (1 - HISTORY));
  const strip = document.createElement("canvas");
  [strip.width, strip.height] = [width, height - top];
  drawHeatmap(strip.getContext("2d"), frames.levels, [frames.count, frames.size], colours);
  context.drawImage(strip, 0, top);
  context.strokeStyle = ink.mark;
  context.lineWidth = 2;
  context.beginPath();
  context.moveTo(0, top + t * (height - top));
  context.lineTo(width, top + t * (height - top));
  context.stroke();
}
