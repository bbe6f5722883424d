// The page: up to four drawings, the path or barycenter of them, and its report.

import { decodeBase64 } from "../../plotting/viewer/bytes.js";
import { readFields } from "../../plotting/viewer/carry.js";
import { Frames } from "../../plotting/viewer/frames.js";
import { locateWeights, roundWeights } from "../../plotting/viewer/polygon.js";
import { showReport } from "../../plotting/viewer/report_panel.js";
import { bindKeys, View } from "../../plotting/viewer/view.js";
import { WeightView } from "../../plotting/viewer/weight_view.js";
import * as api from "./api.js";
import { BusySign } from "./busy.js";
import { showDownloads } from "./downloads.js";
import { Drawing } from "./drawing.js";
import { showGallery } from "./gallery.js";
import { Pad } from "./pad.js";
import { decodePermalink } from "./permalink.js";
import { Setup } from "./setup.js";

const FRAMES = 33;
const OUTDATED = 409; // HTTP status if a newer request has replaced this one
const REPORT_DELAY = 250; // milliseconds after the last change
const EXAMPLES = {
  1: ["two-lumps", "triangle", "box", "skewed"],
  2: ["moons", "heart", "ring", "star"],
};

const settings = JSON.parse(document.getElementById("settings").textContent);
const colours = decodeBase64(settings.colours);
const byId = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.setup = new Setup(byId("setup"), settings, (name) => this.changeSetup(name));
    this.view = new View(byId("view"), colours, () => this.loadOverlays());
    this.busy = new BusySign(byId("busy"));
    this.middle = document.querySelector(".middle");
    this.drawings = [];
    this.pads = [];
    for (let k = 0; k < 4; k += 1) this.createPad(k);
    this.examples = null; // the gallery, once it is loaded
    this.fillsEmpty = false; // whether empty drawings become examples
    this.request = null; // the request whose answer is shown
    this.source = []; // solver and time of this answer, as texts
    this.version = 0; // changes whenever running requests become useless
    this.isOutdated = false; // whether anything has changed since the last request
    this.isSolving = false;
    this.showCount();
    bindKeys({ press: (event) => (this.setup.isPath ? this.view.player : this.weights.pad).press(event) });
  }

  async start() {
    const linked = await decodePermalink(location.hash).catch(() => null);
    if (location.hash && !linked) this.showMessage("The link is incomplete; copy all of it.");
    if (linked) this.restore(linked);
    this.fillsEmpty = !linked;
    this.loadGallery();
    window.addEventListener("hashchange", () => location.reload());
  }

  createPad(k) {
    const drawing = new Drawing(this.setup.shape, () => this.updateDrawing(k));
    this.drawings.push(drawing);
    const onFile = (file) => this.openFile(k, file);
    this.pads.push(new Pad(byId(`density-${k + 1}`), drawing, colours, onFile));
  }

  // The drawings that are shown; others keep their values.
  get shown() {
    return this.drawings.slice(0, this.setup.count);
  }

  get titles() {
    if (this.setup.isPath) return ["Source", "Target"];
    return this.shown.map((_, k) => `Density ${k + 1}`);
  }

  // Settings, drawings and weights, from which a request, a link or Python code is made.
  state() {
    const { isPath, request } = this.setup;
    return {
      ...request,
      densities: this.shown.map(({ values }) => values),
      weights: isPath ? null : roundWeights(this.weights.pad.weights),
      frames: FRAMES,
    };
  }

  // ---- settings above the drawings

  changeSetup(name) {
    this.showMessage("");
    if (!["epsilon", "reach"].includes(name)) this.version += 1; // sliders show intermediate values
    if (name === "count") this.showCount();
    if (name === "dimension") {
      this.setup.reset(this.setup.dimension);
      for (const drawing of this.drawings) drawing.reset(this.setup.shape);
    }
    if (name === "cells") for (const drawing of this.drawings) drawing.resize(this.setup.shape);
    if (["dimension", "cells"].includes(name)) {
      this.clearAnswer();
      for (const pad of this.pads) pad.draw();
      this.loadGallery();
    }
    this.fillsEmpty ||= ["dimension", "count"].includes(name);
    this.showExamples();
    this.requestSolve();
  }

  // Show the pads and the view of the number of densities.
  showCount() {
    const { isPath, count } = this.setup;
    this.pads.forEach((pad, k) => {
      pad.root.hidden = k >= count;
      if (k < count) pad.setTitle(this.titles[k]);
      if (!isPath) pad.root.querySelector(".gallery")?.removeAttribute("open");
    });
    document.querySelector("main").dataset.count = count;
    byId("view").hidden = !isPath;
    byId("weights").hidden = isPath;
    this.view.player.pause();
    if (!isPath) {
      const onMove = () => this.requestSolve();
      this.weights = new WeightView(byId("weights"), colours, settings.polygons[count], onMove);
    }
    showDownloads(byId("downloads"), this);
    this.clearAnswer();
  }

  restore(linked) {
    this.setup.restore(linked);
    for (const drawing of this.drawings) drawing.reset(this.setup.shape);
    this.showCount();
    linked.drawings.forEach((values, k) => this.drawings[k].replace(values));
    if (this.setup.isPath) this.view.player.seek(linked.t);
    else this.weights.pad.move(locateWeights(linked.weights, this.weights.pad.polygon.corners));
  }

  async loadGallery() {
    const { shape } = this.setup;
    this.examples = null;
    const examples = await api.fetchGallery(shape.length, shape[0]).catch((error) => {
      this.showMessage(error.message);
      return [];
    });
    if (String(shape) !== String(this.setup.shape)) return; // another gallery is being loaded
    this.examples = examples;
    this.showExamples();
    this.pads.forEach(({ root }, k) => {
      const onChoice = ({ values }) => this.drawings[k].replace(values);
      showGallery(root, this.examples, shape, colours, onChoice, this.setup.isPath);
    });
  }

  // Fill empty drawings if a change has asked for it, as soon as the gallery is loaded.
  showExamples() {
    if (!this.fillsEmpty || !this.examples) return;
    this.fillsEmpty = false;
    this.shown.forEach((drawing, k) => {
      const wanted = EXAMPLES[this.setup.dimension][k];
      const example = this.examples.find(({ name }) => name === wanted) ?? this.examples[k];
      if (drawing.isEmpty && example) drawing.replace(example.values);
    });
  }

  async openFile(k, file) {
    this.showMessage(`Opening ${file.name} …`);
    try {
      const { shape } = this.setup;
      const { values, notes } = await api.uploadFile(file, shape.length, shape[0]);
      this.drawings[k].replace(values);
      this.showMessage([`Opened ${file.name}.`, ...notes].join(" "));
    } catch (error) {
      this.showMessage(error.message);
    }
  }

  // ---- from a stroke to the answer on the screen

  updateDrawing(k) {
    this.showMessage("");
    this.pads[k].draw();
    this.requestSolve();
  }

  // One request at a time; of several changes in the meantime only the last is solved.
  requestSolve() {
    this.isOutdated = true;
    clearTimeout(this.reportTimer);
    this.middle.classList.add("outdated", "without-report");
    const empty = this.shown.findIndex((drawing) => drawing.isEmpty);
    if (empty >= 0) {
      this.version += 1;
      this.clearAnswer();
      if (!this.fillsEmpty) this.showMessage(`${this.titles[empty]} is empty; draw something there.`);
    }
    if (!this.isSolving) this.solveLatest();
  }

  async solveLatest() {
    this.isSolving = true;
    while (this.isOutdated) {
      this.isOutdated = false;
      if (this.shown.every((drawing) => !drawing.isEmpty)) await this.solve();
    }
    this.isSolving = false;
    if (this.request) this.reportTimer = setTimeout(() => this.loadReport(), REPORT_DELAY);
  }

  async solve() {
    const { version } = this;
    const request = api.createRequest(this.state());
    try {
      const answer = await this.busy.during("Solving …", api.solve(request));
      if (version !== this.version) return;
      this.request = request;
      this.showAnswer(answer);
      document.dispatchEvent(new Event("geonet:shown")); // for tests and `make benchmark`
    } catch (error) {
      if (error.status === OUTDATED || version !== this.version) return;
      this.clearAnswer();
      this.showMessage(error.message);
    }
  }

  showAnswer({ shape, count, highest, solver, value, milliseconds, ...numbers }) {
    const scale = { name: "linear", lowest: 0, highest };
    const levels = new Uint8Array(numbers.buffer, numbers.offset, count * numbers.size);
    const frames = new Frames({ shape, count, levels, scale });
    if (this.setup.isPath) this.view.show(frames);
    else {
      const { corners } = this.weights.pad.polygon;
      const end = numbers.offset + levels.length;
      this.weights.show(frames, {
        positions: [locateWeights(this.request.weights, corners)],
        simplices: [[0]],
        fields: readFields(numbers.buffer, end, 1, numbers.fields),
        ends: corners.map((_, k) => k + 1),
      });
    }
    const time = `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`;
    this.source = [solver, time];
    this.showValue(value);
    this.middle.classList.toggle("outdated", this.isOutdated);
  }

  showValue(value) {
    byId("result").textContent = [value, ...this.source].filter(Boolean).join(", ");
  }

  // Remove an answer that does not belong to the drawings and settings.
  clearAnswer() {
    this.request = null;
    this.view.clear();
    this.weights?.clear();
    byId("result").textContent = "";
    byId("report").replaceChildren();
  }

  isCurrent(request) {
    return request === this.request && !this.isOutdated && !this.isSolving;
  }

  async loadReport() {
    const { request } = this;
    try {
      const report = await this.busy.during("Computing bounds …", api.fetchReport(request));
      if (!this.isCurrent(request)) return;
      showReport(byId("report"), report);
      this.showValue(report.value); // an interval if the distance is uncertain
      this.middle.classList.remove("without-report");
    } catch (error) {
      if (error.status !== OUTDATED && this.isCurrent(request)) this.showMessage(error.message);
    }
  }

  async loadOverlays() {
    const { request } = this;
    if (!request || this.overlayRequest === request) return;
    this.overlayRequest = request;
    try {
      const { particles, potential, missing } = await api.fetchOverlays(request);
      if (request !== this.request) return;
      this.view.show(this.view.frames, { particles, potential }, missing);
      if (this.isCurrent(request)) this.showMessage(Object.values(missing).join(" "));
    } catch (error) {
      if (error.status !== OUTDATED && this.isCurrent(request)) this.showMessage(error.message);
    }
  }

  // A message remains until the next change.
  showMessage(message) {
    byId("message").textContent = message;
  }
}

new Page().start();
