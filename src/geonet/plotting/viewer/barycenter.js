// Entry point of the standalone page that barycenter.explore() writes; its data are in the page.

import { decodeBase64, inflate } from "./bytes.js";
import { readFields } from "./carry.js";
import { readFrames } from "./frames.js";
import { showReport } from "./report_panel.js";
import { bindKeys } from "./view.js";
import { WeightView } from "./weight_view.js";

async function startWeights() {
  const data = JSON.parse(document.getElementById("path").textContent);
  const { buffer } = await inflate(decodeBase64(data.numbers));
  const { frames, size } = readFrames(buffer, data);
  const fields = readFields(buffer, size, data.count, data.fields);
  const root = document.getElementById("view");
  const view = new WeightView(root, decodeBase64(data.colours), data.table);
  view.show(frames[0], { ...data.table, fields }, frames.slice(1));
  view.pad.move(data.table.start);
  showReport(document.getElementById("report"), data);
  bindKeys(view.pad);
}

startWeights();
