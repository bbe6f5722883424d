// Entry point of the standalone page that path.explore() writes; its data are in the page.

import { decodeBase64, inflate, readFloats } from "./bytes.js";
import { readFrames } from "./frames.js";
import { showReport } from "./report_panel.js";
import { bindKeys, View } from "./view.js";

async function start() {
  const data = JSON.parse(document.getElementById("path").textContent);
  const { buffer } = await inflate(decodeBase64(data.numbers));
  const { frames, size } = readFrames(buffer, data);
  const particles = readFloats(buffer, size, data.particles);
  const end = size + (particles ? particles.values.byteLength : 0);
  const layers = { particles, potential: readFloats(buffer, end, data.potential) };
  const view = new View(document.getElementById("view"), decodeBase64(data.colours));
  view.show(frames[0], layers, data.missing, frames.slice(1));
  showReport(document.getElementById("report"), data);
  bindKeys(view.player);
}

start();
