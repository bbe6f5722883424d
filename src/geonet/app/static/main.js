// The page: two drawings, the path between them, and its report.

import { decodeBase64 } from "../../plotting/viewer/bytes.js";
import { Frames } from "../../plotting/viewer/frames.js";
import { showReport } from "../../plotting/viewer/report_panel.js";
import { bindKeys, createElement, View } from "../../plotting/viewer/view.js";
import * as api from "./api.js";
import { showDownloads } from "./downloads.js";
import { Drawing } from "./drawing.js";
import { showGallery } from "./gallery.js";
import { Pad } from "./pad.js";
import { decodePermalink } from "./permalink.js";

const FRAMES = 33;
const OUTDATED = 409; // HTTP status if a newer request has replaced this one
const REPORT_DELAY = 250; // milliseconds after the last stroke
const TITLES = { source: "Source", target: "Target" };
const EXAMPLES = { 1: ["two-lumps", "triangle"], 2: ["moons", "heart"] };

const settings = JSON.parse(document.getElementById("settings").textContent);
const colours = decodeBase64(settings.colours);
const byId = (id) => document.getElementById(id);
let messageIsError = false;

class Page {
  constructor() {
    this.view = new View(byId("view"), colours, () => this.loadOverlays());
    this.drawings = {};
    this.pads = {};
    for (const end of Object.keys(TITLES)) this.createPad(end);
    this.request = null; // the request whose path is shown
    this.isOutdated = false; // whether the drawings have changed since the last request
    this.isSolving = false;
    showDownloads(byId("downloads"), () => this.state(), showMessage);
    bindKeys(this.view.player);
    byId("setup").addEventListener("change", (event) => this.changeSetup(event.target));
    byId("epsilon").addEventListener("input", () => this.showEpsilon());
  }

  async start() {
    const linked = await decodePermalink(location.hash).catch(() => null);
    if (location.hash && !linked) showMessage("The link is incomplete; copy all of it.");
    const dimension = linked?.shape.length ?? 2;
    byId("setup").elements.dimension.value = String(dimension);
    this.resetSetup(dimension, linked?.shape[0]);
    if (linked) this.restore(linked);
    await this.loadGallery();
    if (!linked) this.showExamples(EXAMPLES[dimension]);
    window.addEventListener("hashchange", () => location.reload());
  }

  createPad(end) {
    const drawing = new Drawing(this.shape(), () => this.updateDrawing(end));
    this.drawings[end] = drawing;
    const onFile = (file) => this.openFile(end, file);
    this.pads[end] = new Pad(byId(end), TITLES[end], drawing, colours, onFile);
  }

  // ---- current state

  get dimension() {
    return Number(byId("setup").elements.dimension.value);
  }

  get solver() {
    return settings.solvers[this.dimension].find(({ name }) => name === byId("solver").value);
  }

  // The slider is logarithmic.
  get epsilon() {
    return Number(Math.exp(Number(byId("epsilon").value)).toPrecision(2));
  }

  shape() {
    const cells = Number(byId("cells").value) || settings.default_cells[this.dimension];
    return Array(this.dimension).fill(cells);
  }

  setup() {
    return {
      shape: this.shape(),
      source: this.drawings.source.values,
      target: this.drawings.target.values,
      solver: this.solver.name,
      epsilon: this.solver.epsilon ? this.epsilon : null,
      frames: FRAMES,
    };
  }

  state() {
    const setup = this.setup();
    return { setup, t: this.view.player.t, createRequest: () => api.createRequest(setup) };
  }

  // ---- settings above the drawings

  resetSetup(dimension, cells = settings.default_cells[dimension]) {
    const format = (n) => (dimension === 2 ? `${n} × ${n}` : String(n));
    setOptions(byId("cells"), settings.cells[dimension].map((n) => [n, format(n)]));
    byId("cells").value = String(cells);
    const solvers = settings.solvers[dimension];
    setOptions(byId("solver"), solvers.map(({ name, label }) => [name, label]));
    const [least, initial, most] = solvers.find(({ epsilon }) => epsilon).epsilon.map(Math.log);
    Object.assign(byId("epsilon"), { min: least, max: most, step: "any", value: initial });
    for (const drawing of Object.values(this.drawings)) drawing.reset(this.shape());
    this.showEpsilon();
  }

  showEpsilon() {
    byId("epsilon-label").hidden = !this.solver.epsilon;
    byId("epsilon-value").textContent = String(this.epsilon);
  }

  async changeSetup(control) {
    if (control.name === "dimension") {
      this.resetSetup(this.dimension);
      await this.loadGallery();
      this.showExamples(EXAMPLES[this.dimension]);
    } else if (control.id === "cells") {
      for (const drawing of Object.values(this.drawings)) drawing.resize(this.shape());
      for (const pad of Object.values(this.pads)) pad.draw();
      await this.loadGallery();
    }
    this.showEpsilon();
    this.requestSolve();
  }

  restore(linked) {
    byId("solver").value = linked.solver;
    if (!byId("solver").value) byId("solver").value = "auto";
    if (linked.epsilon !== null) byId("epsilon").value = Math.log(linked.epsilon);
    this.showEpsilon();
    for (const end of Object.keys(TITLES)) this.drawings[end].replace(linked[end]);
    this.view.player.seek(linked.t);
  }

  async loadGallery() {
    const shape = this.shape();
    this.examples = await api.fetchGallery(shape.length, shape[0]).catch((error) => {
      showMessage(error.message);
      return [];
    });
    for (const end of Object.keys(TITLES)) {
      const onChoice = ({ values }) => this.drawings[end].replace(values);
      showGallery(byId(end), this.examples, shape, colours, onChoice);
    }
  }

  showExamples(names) {
    Object.keys(TITLES).forEach((end, k) => {
      const example = this.examples.find(({ name }) => name === names[k]) ?? this.examples[k];
      if (example) this.drawings[end].replace(example.values);
    });
  }

  async openFile(end, file) {
    showMessage(`Opening ${file.name} …`);
    try {
      const shape = this.shape();
      const { values, notes } = await api.uploadFile(file, shape.length, shape[0]);
      this.drawings[end].replace(values);
      showMessage([`Opened ${file.name}.`, ...notes].join(" "));
    } catch (error) {
      showMessage(error.message);
    }
  }

  // ---- from a stroke to the path on the screen

  updateDrawing(end) {
    showMessage("");
    this.pads[end].draw();
    this.requestSolve();
  }

  // One request at a time; of several changes in the meantime only the last is solved.
  requestSolve() {
    this.isOutdated = true;
    if (!this.isSolving) this.solveLatest();
  }

  async solveLatest() {
    this.isSolving = true;
    document.querySelector(".middle").classList.add("solving");
    while (this.isOutdated) {
      this.isOutdated = false;
      await this.solve();
    }
    this.isSolving = false;
    document.querySelector(".middle").classList.remove("solving");
    clearTimeout(this.reportTimer);
    this.reportTimer = setTimeout(() => this.loadReport(), REPORT_DELAY);
  }

  async solve() {
    const empty = Object.keys(TITLES).find((end) => this.drawings[end].isEmpty);
    if (empty) {
      const side = empty === "source" ? "left" : "right";
      showError(`The ${side} drawing is empty; draw something first.`);
      return;
    }
    const request = api.createRequest(this.setup());
    try {
      const path = await api.solve(request);
      this.request = request;
      this.showPath(path);
      if (messageIsError) showMessage("");
      document.dispatchEvent(new Event("geonet:shown")); // for tests and `make app-latency`
    } catch (error) {
      if (error.status !== OUTDATED) showError(error.message);
    }
  }

  showPath({ shape, count, levels, highest, solver, distance, milliseconds }) {
    const scale = { name: "linear", lowest: 0, highest };
    this.view.show(new Frames({ shape, count, levels, scale }));
    const time = `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`;
    byId("result").textContent = `${distance ? `W₂ = ${distance}, ` : ""}${solver}, ${time}`;
  }

  async loadReport() {
    const { request } = this;
    if (!request || this.isSolving) return;
    try {
      const report = await api.fetchReport(request);
      if (request === this.request) showReport(byId("report"), report);
    } catch (error) {
      if (error.status !== OUTDATED) showMessage(error.message);
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
      const messages = Object.values(missing);
      if (messages.length) showMessage(messages.join(" "));
    } catch (error) {
      if (error.status !== OUTDATED) showMessage(error.message);
    }
  }
}

function setOptions(select, entries) {
  select.replaceChildren(
    ...entries.map(([value, textContent]) => createElement("option", { value, textContent })),
  );
}

function showMessage(message) {
  messageIsError = false;
  byId("message").textContent = message;
}

// The next path that is solved removes an error message.
function showError(message) {
  showMessage(message);
  messageIsError = true;
}

new Page().start();
